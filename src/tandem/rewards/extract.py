"""Where a response says what its answer is."""

import re

BOX = "\\boxed{"
_SAID = re.compile(r"(?:####|\banswer\s*(?:is|:|=)|\u7b54\u6848\s*(?:\u662f|\u4e3a|[:\uff1a]))\s*[:\uff1a]?\s*(.+)", re.IGNORECASE)
_BEFORE, _BEHIND = re.compile(r"(?:[\s*$]|\\[(\[])*"), re.compile(r"(?:[\s*$.\u3002]|[)\]]\\)*")  # the second one backwards


def last_box(text: str) -> str | None:
    """What stands in the last \\boxed{}, stripped; None when there is none or it never closes. Braces may nest; `\\{` is not a brace."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    start += len(BOX)
    depth = 1
    for token in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0:
            return text[start : start + token.start()].strip()
    return None


def after_thought(text: str) -> str:
    """What stands behind the last `</think>`; all of the text when there is none."""
    return text.rpartition("</think>")[2]


def said_answer(text: str) -> str | None:
    """The last box, or else what follows the last `####`, `answer is` or `answer:`, also in Chinese, on its line, outside the thought;
    None without any."""
    box = last_box(text)
    if box is not None:
        return box
    said = _SAID.findall(after_thought(text))
    return _undressed(said[-1]) if said else None


def _undressed(text: str) -> str:
    """Without Markdown and the brackets of a formula on either side, and without the full stop."""
    for dress in (_BEFORE, _BEHIND):
        match = dress.match(text)
        text = text[match.end() if match else 0 :][::-1]
    return text


def well_formed(text: str) -> bool:
    """Whether the whole text matches `<think>.*</think>.*\\boxed{.*}.*`, in linear time (the regular expression is not)."""
    position = 0
    if not text.startswith("<think>"):
        return False
    for part in ("<think>", "</think>", BOX, "}"):
        position = text.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return True
