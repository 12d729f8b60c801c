"""What a response pays for nearly running out of room: DAPO's soft overlong punishment, Yu et al., 2025 (arXiv 2503.14476), equation 13."""


def overlong_penalty(length: int, max_response_length: int, buffer: int) -> float:
    """0 up to max_response_length - buffer, then falling linearly to -1 at max_response_length. All in tokens; a buffer of 0 is off."""
    if buffer == 0:
        return 0.0
    return -min(1.0, max(0, length - (max_response_length - buffer)) / buffer)
