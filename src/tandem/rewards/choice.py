"""Multiple choice: the letter, or letters, that the answer names."""

import re

from tandem.rewards.extract import after_thought, last_box
from tandem.rewards.types import Grade

_ONE = r"[(\[]?\s*([A-J])\s*[)\]]?"
_SEVERAL = re.compile(rf"{_ONE}(?:\s*(?:,|;|&|and|\s)\s*{_ONE})*", re.IGNORECASE)
_LABELLED = re.compile(r"(?:option|choice|answer)?\s*[(\[]?([A-Ja-j])[)\]]?\s*[.:)\-].*", re.DOTALL)
_SAID = re.compile(r"(?:answer|option|choice)\s*(?:is|:|=)?\s*:?\s*\**\s*[(\[]?([A-J])\b(?!['\u2019])", re.IGNORECASE)
_DRESS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|rm|bf)\s*|[{}$*]|\\[,;! ]")


def grade(text: str, ground_truth: str) -> Grade:
    """The letters in the last box, else the one that is said to be the answer; the form is a box with nothing but letters in it."""
    right = letters(ground_truth)
    if not right:
        raise ValueError(f"the ground truth {ground_truth!r} names no choice")
    box = last_box(text)
    if box is not None:
        chosen = letters(box)
        form = float(bool(chosen))
    else:
        said = _SAID.findall(after_thought(text))
        chosen, form = {said[-1].upper()} if said else set(), 0.0
    if not chosen:
        return Grade(0.0, form, "no_answer" if box is None else "unparsed")
    is_right = chosen == right
    return Grade(float(is_right), form, "correct" if is_right else "wrong", answer="".join(sorted(chosen)))


def letters(text: str) -> set[str]:
    """`C`, `(C)`, `C. 12 cm`, `\\text{C}`, `A and C`, `AC`, `option b`: the letters from A to J; none for anything else."""
    plain = " ".join(_DRESS.sub(" ", text).split())
    plain = re.sub(r"^(?:options?|choices?|answers?)\s*(?:is|are|:)?\s*", "", plain, flags=re.IGNORECASE).removesuffix(".")
    if re.fullmatch("[A-J]{2,}", plain) and sorted(set(plain)) == list(plain):
        return set(plain)
    if _SEVERAL.fullmatch(plain):
        return {letter.upper() for letter in re.findall(r"\b[A-Ja-j]\b", plain)}
    if labelled := _LABELLED.fullmatch(plain):
        return {labelled.group(1).upper()}
    return set()
