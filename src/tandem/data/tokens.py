"""Tokens that have a meaning of their own: text that spells one out would be taken for it."""

VISION_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")
RESERVED = (*VISION_TOKENS, "<|im_start|>", "<|im_end|>", "<|endoftext|>")


def reserved_in(text: str) -> str:
    """The first reserved token that `text` spells out, or nothing."""
    return next((token for token in RESERVED if token in text), "")
