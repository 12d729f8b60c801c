"""A user's own grader: a function in a file of theirs, of whatever of these it asks for by its parameters' names.

One response:     text (or response, solution_str), ground_truth, data_source, prompt, extra_info
Several at once:  texts (or responses, solution_strs), ground_truths, data_sources, prompts, extra_infos

It returns a number, or a dict with `score` (or `accuracy`), `format`, `reason` and `answer` (in one spelling, for majority votes); for
several a list of those. It may be async.
"""

import ast
import math
import re
from typing import Any, SupportsFloat

from tandem.config.userfile import split_name
from tandem.errors import UserError
from tandem.rewards.types import Grade, Item

ONE = {
    "text": "text",
    "response": "text",
    "solution_str": "text",
    "ground_truth": "ground_truth",
    "data_source": "data_source",
    "prompt": "prompt",
    "extra_info": "extra_info",
}  # parameter -> field of Item
SEVERAL = {f"{name}s": field for name, field in ONE.items()}
MAX_REASON_LENGTH = 32  # characters


def check_function(name: str) -> None:
    """Looks at the file without running it. Raises UserError when there is no such function, or it asks for what nobody can give."""
    path, wanted = split_name(name)
    fix = f"set reward.name=FILE.py:FUNCTION; the function may ask for {', '.join(ONE)}, or for {', '.join(SEVERAL)}"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"the reward's file {path} cannot be read", str(error), fix) from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if wanted not in functions:
        raise UserError(f"{path} has no function {wanted!r}", f"it has: {', '.join(functions) or 'none'}", fix)
    names, needed = _parameters(functions[wanted])
    if unknown := needed - ONE.keys() - SEVERAL.keys():
        raise UserError(f"{name} asks for {sorted(unknown)[0]!r}", "only what a response and its row have can be given", fix)
    if names & ONE.keys() and names & SEVERAL.keys():
        raise UserError(f"{name} asks for one response and for several", f"parameters {', '.join(sorted(names))}", fix)
    if not names & {*ONE, *SEVERAL}:
        raise UserError(f"{name} asks for nothing to grade", f"parameters: {', '.join(sorted(names)) or 'none'}", fix)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[set[str], set[str]]:
    """Names of all parameters, and of those without a default."""
    spec = function.args
    plain = [argument.arg for argument in [*spec.posonlyargs, *spec.args]]
    required = plain[: len(plain) - len(spec.defaults)]
    required += [argument.arg for argument, default in zip(spec.kwonlyargs, spec.kw_defaults) if default is None]
    return {*plain, *(argument.arg for argument in spec.kwonlyargs)}, set(required)


def arguments(names: set[str], items: list[Item]) -> dict[str, Any]:
    """What a function with parameters `names` is called with: of one item, or lists of several."""
    if several := names & SEVERAL.keys():
        return {name: [getattr(item, SEVERAL[name]) for item in items] for name in several}
    return {name: getattr(items[0], ONE[name]) for name in names & ONE.keys()}


def as_grade(value: Any) -> Grade:
    """A function's answer about one response. Raises ValueError for what is no score."""
    if isinstance(value, Grade):
        return Grade(_finite(value.accuracy, value), _finite(value.format, value), str(value.reason), answer=_answer(value.answer))
    answer = value if isinstance(value, dict) else {"score": value}
    given = answer.get("score", answer.get("accuracy"))
    score, form = _finite(given, value), _finite(answer.get("format", given), value)
    reason = str(answer.get("reason") or ("correct" if score >= 1 else "wrong" if score <= 0 else "partly"))
    return Grade(score, form, one_word(reason), answer=_answer(answer.get("answer")))


def _answer(value: Any) -> str | None:
    return None if value is None else str(value)


def _finite(number: Any, value: Any) -> float:
    if not isinstance(number, SupportsFloat) or not math.isfinite(float(number)):
        raise ValueError(f"a grader must return a finite number, or a dict with `score`; it returned {value!r}")
    return float(number)


def one_word(reason: str) -> str:
    """The reason as it may stand in a metric's name."""
    return re.sub(r"[^a-z0-9]+", "_", reason.lower()).strip("_")[:MAX_REASON_LENGTH] or "other"
