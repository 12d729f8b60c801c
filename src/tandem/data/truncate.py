"""Which tokens of an over-long prompt may go, so that what is left is still a well-formed turn with whole images."""

import numpy as np


def keep_indices(tokens: list[str], is_added: np.ndarray, num_drop: int, how: str) -> np.ndarray | None:
    """Indices of the tokens to keep, or None when the messages hold fewer than `num_drop` tokens of text.

    Args:
        tokens: the prompt's T tokens as the byte-level vocabulary writes them ("Ċ" is a line break).
        is_added: [T] bool, true for special tokens, image pads among them.
        num_drop: tokens that must go.
        how: "left" drops the first text, "right" the last, "middle" what is between.
    """
    text = np.flatnonzero(_is_message_text(tokens) & ~is_added)
    if len(text) < num_drop:
        return None
    start = {"left": 0, "right": len(text) - num_drop, "middle": (len(text) - num_drop) // 2}[how]
    return np.delete(np.arange(len(tokens)), text[start : start + num_drop])


def _is_message_text(tokens: list[str]) -> np.ndarray:
    """[T] bool: between the line break after `<|im_start|>role` and `<|im_end|>`. What follows the last `<|im_end|>` is no message."""
    inside = np.zeros(len(tokens), bool)
    in_header, body = False, None
    for index, token in enumerate(tokens):
        if token == "<|im_start|>":
            in_header, body = True, None
        elif in_header and "Ċ" in token:
            in_header, body = False, index + 1
        elif token == "<|im_end|>" and body is not None:
            inside[body:index] = True
            body = None
    return inside
