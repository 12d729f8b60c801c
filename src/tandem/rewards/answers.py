"""When two answers are the same answer. `tests/rewards/answers.tsv` is the list of verdicts, each with its reason."""

import re
from fractions import Fraction

from mathruler.grader import are_equal_under_sympy, grade_answer

from tandem.rewards.units import Quantity, split_unit

_REWRITES = [  # LaTeX and typography that carry no meaning, or have a plain spelling
    (r"\\(?:left|right|displaystyle|big|Big|limits)(?![A-Za-z])", ""),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"(?<=\d)\{,\}(?=\d{3})", ","),
    (r"(?<=\d)\\,(?=\d{3}(?!\d))", ","),
    (r"\\[!,;: ]|~|\u00a0|\u2009", " "),
    (r"\\\$|\$", ""),
    (r"[\u2212\u2013]", "-"),
    (r"\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|[\u00b7\u00d7]", "*"),
    (r"\\pi(?![A-Za-z])|\u03c0", "pi"),
    (r"\u221a", r"\\sqrt"),
    (r"\u00b2", "^2"),
    (r"\u00b3", "^3"),
    (r"\^\{(\d)\}", r"^\1"),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
]
_NUMBER = r"(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})"
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_RATIONAL = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<number>{_NUMBER})|(?:(?P<whole>\d{{1,40}})\s*)?\\frac\s*{{\s*(?P<a>-?{_NUMBER})\s*}}\s*{{\s*(?P<b>-?{_NUMBER})\s*}}"
    rf"|(?:(?P<whole2>\d{{1,40}})\s+)?\(?(?P<c>{_NUMBER})\)?\s*/\s*\(?(?P<d>{_NUMBER})\)?)"
)
_TWO_NUMBERS = re.compile(r"\d\s+\d")  # `2 3` is not 23, though mathruler drops the space
_BRACKETS = {"(": ")", "[": "]"}


def equal(answer: str, truth: str) -> bool:
    """Whether two answers, LaTeX or plain, say the same.

    A unit, a percent sign or the left side of an equation may be missing on one side; where both have a unit, it must be the same one.
    Equal values are equal however they are written (2/4 = 1/2, sqrt 16 = 4); a rounded value is not equal to the exact one.
    """
    answer, truth = tidy(answer), tidy(truth)
    if not answer or not truth:
        return False
    if "=" not in truth:
        answer = answer.rpartition("=")[2].strip()
    if "=" not in answer:
        truth = truth.rpartition("=")[2].strip()
    mine, right = split_unit(answer), split_unit(truth)
    if mine.unit and right.unit and mine.unit != right.unit:
        return False
    return _equal_values(mine, right)


def spelling(answer: str) -> str:
    """One spelling of the answers that are seen to be equal without sympy, so that votes for them can be counted: the value alone, without
    the left side of an equation or a unit, a number as a reduced fraction."""
    value = split_unit(tidy(answer).rpartition("=")[2].strip())
    number = rational(value.text)
    return (str(number) if number is not None else _squeeze(plain(value.text))) + "%" * value.is_percent


def tidy(text: str) -> str:
    """One spelling of what LaTeX and Unicode spell in several ways."""
    for pattern, replacement in _REWRITES:
        text = re.sub(pattern, replacement, text)
    whole = re.fullmatch(r"\s*\\(?:text|mathrm|textbf|mathbf|mbox)\s*\{([^{}]*)\}\s*", text)
    text = whole.group(1) if whole else text
    return " ".join(text.split()).removesuffix(".").strip()


def _equal_values(mine: Quantity, right: Quantity) -> bool:
    if not mine.text or not right.text:
        return False
    a, b = rational(mine.text), rational(right.text)
    if a is not None and b is not None:
        return a == b or (mine.is_percent != right.is_percent and (a / 100 == b if mine.is_percent else a == b / 100))
    if _squeeze(mine.text) == _squeeze(right.text):
        return True
    parts = _elements(mine.text), _elements(right.text)
    if parts[0] and parts[1]:
        brackets = [text[0] + text[-1] for text in (mine.text, right.text)]
        return brackets[0] == brackets[1] and len(parts[0]) == len(parts[1]) and all(equal(x, y) for x, y in zip(*parts))
    if _TWO_NUMBERS.search(mine.text):
        return False
    if _has_word(mine.text) or _has_word(right.text):  # mathruler deletes some words: `day` equals `year` there
        return False
    return _equal_expressions(plain(mine.text), plain(right.text))


def _equal_expressions(mine: str, right: str) -> bool:
    """sympy's verdict. mathruler refuses to simplify when one side alone is an integer, so roots (sqrt 16) are compared here."""
    return grade_answer(mine, right) or ("sqrt" in mine + right and are_equal_under_sympy(right.replace(" ", ""), mine.replace(" ", "")))


def rational(text: str) -> Fraction | None:
    """The exact value of an integer, decimal, fraction or mixed number; None for anything else, and for a zero denominator."""
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    match = _RATIONAL.fullmatch(text)
    if not match:
        return None
    sign = -1 if match["sign"] == "-" else 1
    if match["number"]:
        return sign * Fraction(match["number"].rstrip("."))
    above, below = Fraction(match["a"] or match["c"]), Fraction(match["b"] or match["d"])
    if below == 0:
        return None
    return sign * (int(match["whole"] or match["whole2"] or 0) + above / below)


def plain(text: str) -> str:
    """LaTeX fractions and roots as `((a)/(b))` and `sqrt(a)`. mathruler's own conversion loses the brackets of `\\frac{1+x}{2}`."""
    before = None
    while before != text:
        before = text
        text = re.sub(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"\\sqrt\s*\[(\d)\]\s*\{([^{}]*)\}", r"(\2)**(1/\1)", text)
        text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r"sqrt(\1)", text)
        text = re.sub(r"\\sqrt\s*\(", "sqrt(", text)
    return text


def _squeeze(text: str) -> str:
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text).casefold()


def _elements(text: str) -> list[str]:
    """The elements of a tuple or interval of two or more, [] for anything else."""
    if len(text) < 2 or text[0] not in _BRACKETS or text[-1] not in ")]":
        return []
    depth, parts = 0, [""]
    for character in text[1:-1]:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(character, 0)
        if depth < 0:
            return []
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts if len(parts) > 1 else []


def _has_word(text: str) -> bool:
    return any(word not in ("sqrt", "frac", "pi") for word in re.findall(r"[^\W\d_]{3,}", text))
