"""A calculator that the model may call: an environment as small as one can be, for geometry problems.

A call is what Qwen3.5's template teaches, `<tool_call><function=calculator><parameter=expression>...</parameter></function></tool_call>`,
or the same as JSON, `<tool_call>{"name": "calculator", "arguments": {"expression": "..."}}</tool_call>`.
"""

import ast
import json
import math
import operator
import re
from collections.abc import Callable
from dataclasses import replace

from tandem.data.types import Row
from tandem.rollout.environment import Message, Step

MAX_LENGTH, MAX_SIZE, MAX_POWER = 200, 1e30, 64  # characters; of a number on the way; of an exponent

INSTRUCTION = """You may use a calculator. To call it, write
<tool_call>
<function=calculator>
<parameter=expression>
3 * sqrt(2) + sin(radians(30))
</parameter>
</function>
</tool_call>
and nothing after it. It knows + - * / ** and sqrt, sin, cos, tan, asin, acos, atan, radians, degrees, pi. When you know the answer, give \
it without a call."""

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=expression>(.*?)</parameter>", re.DOTALL)
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    name: getattr(math, name) for name in ("sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "radians", "degrees")
} | {"abs": abs}
_OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class Calculator:
    """Answers calls until the model makes none."""

    def reset(self, row: Row) -> Row:
        first, *others = row.messages
        if first["role"] == "system":
            return replace(row, messages=[{**first, "content": f"{first['content']}\n\n{INSTRUCTION}"}, *others])
        return replace(row, messages=[{"role": "system", "content": INSTRUCTION}, *row.messages])

    async def step(self, text: str) -> Step:
        calls = _CALL.findall(text.rpartition("</think>")[2] if "</think>" in text else text)
        if not calls:
            return Step(done=True)
        answers = "\n".join(f"<tool_response>\n{answer(call)}\n</tool_response>" for call in calls)
        return Step([Message(answers)])


def answer(call: str) -> str:
    """What the calculator says to one call; never what the call says, which may hold anything."""
    expression = expression_of(call)
    if expression is None:
        return "error: a call names the function calculator and its parameter expression"
    try:
        return f"{calculate(expression):.10g}"
    except (ValueError, SyntaxError, ArithmeticError, RecursionError) as error:
        return f"error: {error}" if isinstance(error, CannotCalculate) else f"error: {type(error).__name__}"


def expression_of(call: str) -> str | None:
    """In either form; None when it is none."""
    if found := _FUNCTION.search(call):
        parameter = _PARAMETER.search(found[2])
        return parameter[1].strip() if found[1] == "calculator" and parameter else None
    try:
        told = json.loads(call)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.get("name") != "calculator" or not isinstance(told.get("arguments"), dict):
        return None
    expression = told["arguments"].get("expression")
    return expression.strip() if isinstance(expression, str) else None


class CannotCalculate(ValueError):
    """The message is ours, not the model's."""


def calculate(expression: str) -> float:
    """The value, in time that the expression's length bounds: no number grows beyond MAX_SIZE on the way.

    Raises:
        ValueError, SyntaxError, ArithmeticError: it has none.
    """
    if len(expression) > MAX_LENGTH:
        raise CannotCalculate(f"the expression is longer than {MAX_LENGTH} characters")
    return _value(ast.parse(expression.replace("^", "**"), mode="eval").body)


def _value(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.Name(id="pi"):
            return math.pi
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand))
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            base, exponent = _value(left), _value(right)
            if abs(exponent) > MAX_POWER:
                raise CannotCalculate(f"an exponent is larger than {MAX_POWER}")
            return _bounded(base**exponent)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(argument))
    raise CannotCalculate("only numbers, + - * / **, brackets and the functions that were named")


def _bounded(number: float) -> float:
    if isinstance(number, complex):
        raise CannotCalculate("the value is not real")
    if not abs(number) <= MAX_SIZE:
        raise CannotCalculate("a number is too large")
    return number
