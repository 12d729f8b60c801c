"""Multiple choice: the letter, or letters, that the answer names."""

import re
import unicodedata

from tandem.rewards.extract import after_thought, last_box
from tandem.rewards.types import Grade

_ONE = r"[(\[]?\s*([A-J])\s*[)\]]?"
_SEVERAL = re.compile(rf"{_ONE}(?:\s*(?:[,;&\u3001]\s*(?:and\b)?|and|\s)\s*{_ONE})*", re.IGNORECASE)
_LABELLED = re.compile(r"(?:option|choice|answer)?\s*[(\[]?([A-Ja-j])[)\]]?\s*[.:)\-].*", re.DOTALL)
_LETTER = r"\s*:?\s*[(\[]?([A-J](?![A-Za-z0-9_'\u2019])|[a-j](?=\s*(?:[)\].,;]|$)))"  # a small one at the end only: `a` is a word
_ANSWER = re.compile(rf"(?:(?i:answer)\s*(?i:is|:|=)?|\u7b54\u6848\s*[\u662f\u4e3a]?\s*:?)\s*(?i:option|choice)?{_LETTER}", re.MULTILINE)
_CHOSEN = re.compile(rf"(?:(?i:option|choice)\s*(?i:is|:|=)?|\u9009\u9879?){_LETTER}", re.MULTILINE)
_DRESS = re.compile(r"\\(?:text|mathrm|mathbf|rm|bf)(?:bf|rm)?(?![A-Za-z])\s*|[{}$*~]|\\[,;! ()\[\]]")


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
        plain = _plain(after_thought(text))
        said = _ANSWER.findall(plain) or _CHOSEN.findall(plain)
        chosen, form = {said[-1].upper()} if said else set(), 0.0
    if not chosen:
        return Grade(0.0, form, "no_answer" if box is None else "unparsed")
    is_right = chosen == right
    return Grade(float(is_right), form, "correct" if is_right else "wrong", answer="".join(sorted(chosen)))


def _plain(text: str) -> str:
    """Without LaTeX's and Markdown's dress, in the usual width, and no two spaces together."""
    lines = (" ".join(line.split()) for line in _DRESS.sub(" ", unicodedata.normalize("NFKC", text)).splitlines())
    return "\n".join(line for line in lines if line)


def letters(text: str) -> set[str]:
    """`C`, `(C)`, `C. 12 cm`, `\\text{C}`, `A and C`, `AC`, `option b`: the letters from A to J; none for anything else."""
    plain = " ".join(_plain(text).split()).rstrip("\u3001\u3002")
    plain = re.sub(
        r"^(?:options?|choices?|answers?|\u7b54\u6848|\u9009\u9879?)\s*(?:is|are|:)?\s*", "", plain, flags=re.IGNORECASE
    ).removesuffix(".")
    if re.fullmatch("[A-J]{2,}", plain) and sorted(set(plain)) == list(plain):
        return set(plain)
    if _SEVERAL.fullmatch(plain):
        return {letter.upper() for letter in re.findall(r"\b[A-Ja-j]\b", plain)}
    if labelled := _LABELLED.fullmatch(plain):
        return {labelled.group(1).upper()}
    return set()
