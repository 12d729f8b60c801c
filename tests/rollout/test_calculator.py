"""The built-in tool: what it answers to calls in both forms, and that no call can make it work long."""

import asyncio
import math
import time

import pytest

from tandem.data.types import Row
from tandem.errors import UserError
from tandem.rollout.calculator import MAX_LENGTH, Calculator, answer, calculate
from tandem.rollout.environment import Step, load_environment

CALL = "<tool_call>\n<function=calculator>\n<parameter=expression>\n{}\n</parameter>\n</function>\n</tool_call>"


def said(text: str) -> Step:
    return asyncio.run(Calculator().step(text))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7.0),
        ("2^10", 1024.0),
        ("-(3 - 5) / 4", 0.5),
        ("sqrt(3**2 + 4**2)", 5.0),
        ("degrees(asin(0.5))", 30.0),
        ("2 * pi * 7", 14 * math.pi),
        ("abs(-2)", 2.0),
    ],
)
def test_values(expression, value):
    assert calculate(expression) == pytest.approx(value)
    assert said(CALL.format(expression)).messages[0].content == f"<tool_response>\n{value:.10g}\n</tool_response>"


BOMBS = [
    "9**9**9",
    "9**64**64",
    "(" * 90 + "1" + ")" * 90,
    "1" * (MAX_LENGTH + 1),
    "10**30 * 10**30",
    "2**-100",
    "1/0",
    "sqrt(-1)",
    "(-8)**0.5",
]
TRICKS = ["__import__('os')", "().__class__", "x", "print(1)", "'a' * 9", "True", "sqrt(2, 3)", "[1][0]", "lambda: 1", "1; 2", "", "1j"]


@pytest.mark.parametrize("expression", [*BOMBS, *TRICKS])
def test_what_cannot_be_calculated_is_told_at_once_and_not_repeated(expression):
    began = time.monotonic()
    content = said(CALL.format(expression)).messages[0].content
    assert content.startswith("<tool_response>\nerror: ") or expression.startswith("((((")
    assert time.monotonic() - began < 1.0
    assert "__class__" not in content and "<|im_end|>" not in content


def test_calls_in_json_and_several_in_one_turn():
    step = said('<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call> and ' + CALL.format("1/4"))
    assert step.messages[0].content == "<tool_response>\n42\n</tool_response>\n<tool_response>\n0.25\n</tool_response>"
    for call in (
        "{}",
        '{"name": "shell", "arguments": {}}',
        "[1]",
        "<function=shell><parameter=expression>1</parameter></function>",
        '"x"',
        "[" * 100_000,
    ):
        assert answer(call).startswith("error")


def test_a_turn_without_a_call_ends_the_conversation_and_a_call_inside_the_thought_is_none():
    assert said("so \\boxed{7}").done
    assert said(f"<think>\nI could call {CALL.format('1')}\n</think>\n\n\\boxed{{7}}").done
    assert not said(f"<think>\nhm\n</think>\n\n{CALL.format('1')}").done


def test_the_model_is_told_of_the_tool_in_the_system_message_and_the_same_way_each_time():
    row = Row("a:0", "s", [{"role": "user", "content": "?"}], [], "7", {})
    opened = load_environment("calculator").opened(row)
    assert opened.messages[0]["role"] == "system" and "<function=calculator>" in opened.messages[0]["content"]
    assert opened.messages[1:] == row.messages and Calculator().reset(row) == opened
    with_system = Row("a:0", "s", [{"role": "system", "content": "Be brief."}, *row.messages], [], "7", {})
    first, second = Calculator().reset(with_system).messages
    assert first["content"].startswith("Be brief.\n\n") and second == row.messages[0]


def test_an_environment_that_is_none_is_told_before_anything_starts(tmp_path):
    (tmp_path / "env.py").write_text(
        "from side import X\nclass Good:\n    def reset(self, row): return row\n    async def step(self, text): return X\n"
        "class Sync:\n    def reset(self, row): return row\n    def step(self, text): return None\n"
    )
    (tmp_path / "side.py").write_text("X = 1\n")
    assert load_environment(f"{tmp_path}/env.py:Good").make().reset(3) == 3
    for name, why in ((":Sync", "async method step"), (":Missing", "AttributeError"), ("x:Good", "cannot be loaded")):
        with pytest.raises(UserError) as caught:
            load_environment(f"{tmp_path}/env.py{name}" if name[0] == ":" else f"{tmp_path}/nope.py:Good")
        assert why in str(caught.value) + caught.value.what + caught.value.why
    with pytest.raises(UserError, match="unknown environment"):
        load_environment("calculater")
