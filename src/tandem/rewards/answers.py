"""When two answers are the same answer. `tests/rewards/answers.tsv` is the list of verdicts, each with its reason."""

import re
from fractions import Fraction

from mathruler.grader import are_equal_under_sympy, grade_answer

from tandem.rewards.units import Quantity, split_unit

RELATIONS = [  # each in one spelling, which has no equals sign
    (r"\\leq?(?![A-Za-z])|\u2264|<=", r"\\leq "),
    (r"\\geq?(?![A-Za-z])|\u2265|>=", r"\\geq "),
    (r"\\lt(?![A-Za-z])", "<"),
    (r"\\gt(?![A-Za-z])", ">"),
    (r"\\neq?(?![A-Za-z])|\\not\s*=|\u2260|(?<!\d)!=", r"\\neq "),
]
_REWRITES = [  # LaTeX and typography that carry no meaning, or have a plain spelling
    (r"\\(?:left|right|displaystyle|big|Big|limits)(?![A-Za-z])", ""),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"(?<=\d)\{,\}(?=\d{3})", ","),
    (r"(?<=\d)\\,(?=\d{3}(?!\d))", ","),
    (r"\\[!,;: ()\[\]]|\\q?quad(?![A-Za-z])|~|\u00a0|\u2009", " "),
    (r"\\\$|\$", ""),
    (r"[\u2212\u2013]", "-"),
    (r"\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|[\u00b7\u00d7]", "*"),
    (r"\\div(?![A-Za-z])|\u00f7", "/"),
    *RELATIONS,
    (r"\\approx(?![A-Za-z])|\u2248", "="),
    (r"\\pi(?![A-Za-z])|\u03c0", "pi"),
    (r"\u221a", r"\\sqrt"),
    (r"\u00b2", "^2"),
    (r"\u00b3", "^3"),
    (r"\^\{(\d)\}", r"^\1"),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
]
_FULL_WIDTH = str.maketrans(dict(zip(range(0xFF01, 0xFF5F), map(chr, range(0x21, 0x7F)))))  # as Chinese is typed
_NUMBER = r"(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})"
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_RATIONAL = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<number>{_NUMBER})|(?:(?P<whole>\d{{1,40}})\s*)?\\frac\s*{{\s*(?P<a>-?{_NUMBER})\s*}}\s*{{\s*(?P<b>-?{_NUMBER})\s*}}"
    rf"|(?:(?P<whole2>\d{{1,40}})\s+)?\(?(?P<c>{_NUMBER})\)?\s*/\s*\(?(?P<d>{_NUMBER})\)?)"
)
_POWER = re.compile(r"([-+]?)\s*(?:(\d{1,40}(?:\.\d{1,40})?)\s*\*\s*)?(\d{1,6})\s*\^\s*(?:\{\s*(-?\d{1,2})\s*\}|(-?\d{1,2}))")
_REPEATING = re.compile(r"([-+]?)(\d{0,40})\.(\d{0,40})\\overline\s*\{(\d{1,40})\}")
_INDICES = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|_\s*\{[^{}]*\}")
_SEVERAL = re.compile(r"[,;\u3001\u6216\u548c]|(?<![A-Za-z])(?:or|and)(?![A-Za-z])")
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
        answer = right_side(answer)
    if "=" not in answer:
        truth = right_side(truth)
    mine, right = split_unit(answer), split_unit(truth)
    if (mine.unit and right.unit and mine.unit != right.unit) or (mine.is_percent and right.unit) or (right.is_percent and mine.unit):
        return False
    return _equal_values(mine, right)


def spelling(answer: str) -> str:
    """One spelling of the answers that are seen to be equal without sympy, so that votes for them can be counted: the value alone, without
    the left side of an equation or a unit, a number as a reduced fraction."""
    value = split_unit(right_side(tidy(answer)))
    number = rational(value.text)
    return (str(number) if number is not None else _squeeze(plain(value.text))) + "%" * value.is_percent


def right_side(text: str) -> str:
    """What an equation says of its left side: `5` of `x = 5` and of `5 = x`. Several equations (`x = 3, y = 4`) are left as they are."""
    left, equals, right = (part.strip() for part in text.rpartition("="))
    if not equals or _SEVERAL.search(_INDICES.sub("", left)):
        return text
    return left if len(right) == 1 and right.isalpha() and rational(left) is not None else right


def tidy(text: str) -> str:
    """One spelling of what LaTeX and Unicode spell in several ways."""
    text = text.translate(_FULL_WIDTH)
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
    """The exact value of an integer, decimal (`0.\\overline{3}`, too), fraction, mixed number, or power (`1.5*10^3`); None for anything
    else, and for a zero denominator."""
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if power := _POWER.fullmatch(text):
        return _power(*power.groups())
    if repeating := _REPEATING.fullmatch(text):
        minus, whole, once, again = repeating.groups()
        value = Fraction(int(whole + once + again or 0) - int(whole + once or 0), (10 ** len(again) - 1) * 10 ** len(once))
        return -value if minus == "-" else value
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


def _power(sign: str, factor: str | None, base: str, braced: str | None, bare: str | None) -> Fraction | None:
    exponent = int(braced or bare or 0)
    if int(base) == 0 and exponent <= 0:
        return None
    value = Fraction(factor or 1) * Fraction(base) ** exponent
    return -value if sign == "-" else value


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
