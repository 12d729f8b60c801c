"""Geo3K's grader: verdicts on answers, the last box, the form."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import UserError
from tandem.rewards import Grade, check_name, combine
from tandem.rewards.answers import equal
from tandem.rewards.extract import last_box, well_formed
from tandem.rewards.geo3k import MAX_ANSWER_LENGTH, grade

TABLE = [line.split("\t") for line in Path(__file__).with_name("answers.tsv").read_text().splitlines() if not line.startswith("# ")]


@pytest.mark.parametrize(("answer", "truth", "right", "why"), TABLE, ids=[f"{row[0]} for {row[1]}" for row in TABLE])
def test_verdict(answer, truth, right, why):
    assert equal(answer, truth) == {"yes": True, "no": False}[right], why


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}} and more", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed{7", None),
        (r"\boxed{1} then \boxed{\frac{1}{2}", None),
        ("the answer is 7", None),
        (r"boxed{7}", None),
        ("", None),
    ],
)
def test_the_last_box_wins_and_an_open_one_is_none(text, box):
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("text", "truth", "expected"),
    [
        ("<think>\nseven\n</think>\n\n\\boxed{7}", "7", Grade(1.0, 1.0, "correct")),
        ("<think>\nseven\n</think>\n\n\\boxed{8}", "7", Grade(0.0, 1.0, "wrong")),
        ("seven\n</think>\n\n\\boxed{7}", "7", Grade(1.0, 0.0, "correct")),  # without the prefill: right, but not of the form
        ("<think>\nseven \\boxed{7}", "7", Grade(1.0, 0.0, "correct")),
        ("<think>\nseven\n</think>\n\n7", "7", Grade(0.0, 0.0, "no_box")),
        ("<think>\nseven\n</think>\n\n\\boxed{7", "7", Grade(0.0, 0.0, "no_box")),
        ("<think>\n\n</think>\n\n\\boxed{}", "7", Grade(0.0, 1.0, "empty_box")),
        ("<think>\nnothing\n</think>\n\nI do not know", "None", Grade(0.0, 0.0, "no_box")),  # mathruler calls a missing box "None"
        ("<think>\nnothing\n</think>\n\n\\boxed{None}", "None", Grade(1.0, 1.0, "correct")),
        ("<think></think>\\boxed{" + "7" * (MAX_ANSWER_LENGTH + 1) + "}", "7", Grade(0.0, 1.0, "too_long")),
    ],
)
def test_grade_of_a_whole_turn(text, truth, expected):
    assert grade(text, truth) == expected


PIECES = st.tuples(
    st.sampled_from(["<think>", "<think>", "x"]),
    st.lists(st.sampled_from(["</think>", "\\boxed{", "}", "<think>", "x", "\n"]), max_size=9).map("".join),
).map("".join)


@given(PIECES)
def test_the_form_is_that_of_the_regular_expression(text):
    assert well_formed(text) == bool(re.fullmatch(r"<think>.*</think>.*\\boxed\{.*\}.*", text, re.DOTALL))


def test_the_form_is_checked_in_linear_time():
    """The regular expression needs minutes for this one; the test would hang."""
    assert not well_formed("<think>" + "</think>" * 3000 + "\\boxed{" * 3000)


def test_reward_is_the_weighted_sum_of_accuracy_and_format():
    assert combine(Grade(1.0, 1.0, ""), 0.1) == 1.0
    assert combine(Grade(1.0, 0.0, ""), 0.1) == pytest.approx(0.9)
    assert combine(Grade(0.0, 1.0, ""), 0.1) == pytest.approx(0.1)


def test_an_unknown_reward_names_the_nearest():
    with pytest.raises(UserError) as error:
        check_name("geo3")
    assert error.value.fix == "set reward.name=geo3k"
