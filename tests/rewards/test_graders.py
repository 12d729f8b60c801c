"""Our graders' verdicts on a table of answers that a person can read; what each calls well formed, and why it gave no point."""

from functools import cache
from pathlib import Path

import pytest

from tandem.errors import UserError
from tandem.rewards import Grade, Item, check_name, combine, parse_also
from tandem.rewards.graders import load

LINES = [
    line.split("\t") for line in Path(__file__).with_name("more_answers.tsv").read_text().splitlines() if line[:2] not in ("# ", "#\t")
]
grader = cache(load)


def grade(name: str, text: str, truth: str) -> Grade:
    [found] = grader(name)([Item(text, truth)])
    assert isinstance(found, Grade), found
    return found


@pytest.mark.parametrize(("name", "response", "truth", "right", "why"), LINES, ids=[" | ".join(line[:3]) for line in LINES])
def test_verdict(name, response, truth, right, why):
    text = f"\\boxed{{{response}}}" if name == "math" else response
    assert grade(name, text, truth.replace("\\n#", "\n#")).accuracy == {"yes": 1.0, "no": 0.0}[right], why


@pytest.mark.parametrize(
    ("name", "text", "truth", "expected"),
    [
        ("math", "<think>x</think> 7", "7", Grade(0.0, 0.0, "no_box")),
        ("math", "\\boxed{}", "7", Grade(0.0, 0.0, "empty_box")),
        ("math", "\\boxed{" + "7" * 1025 + "}", "7", Grade(0.0, 1.0, "too_long")),
        ("math", "\\boxed{8}", "7", Grade(0.0, 1.0, "wrong")),
        ("exact", "no idea", "7", Grade(0.0, 0.0, "no_answer")),
        ("numeric", "it is 7", "7", Grade(1.0, 0.0, "correct")),
        ("numeric", "\\boxed{seven}", "7", Grade(0.0, 1.0, "unparsed")),
        ("numeric", "no idea", "7", Grade(0.0, 0.0, "no_answer")),
        ("choice", "the answer is C", "C", Grade(1.0, 0.0, "correct")),
        ("choice", "\\boxed{12 cm}", "C", Grade(0.0, 0.0, "unparsed")),
        ("choice", "no idea", "C", Grade(0.0, 0.0, "no_answer")),
        ("format", "<think>x</think> \\boxed{7}", "8", Grade(1.0, 1.0, "well_formed")),
        ("format", "\\boxed{7}", "7", Grade(0.0, 0.0, "malformed")),
        ("length:10", "x" * 10, "", Grade(1.0, 1.0, "short")),
        ("length:10", "x" * 15, "", Grade(0.5, 0.5, "long")),
        ("length:10", "x" * 99, "", Grade(0.0, 0.0, "long")),
    ],
)
def test_scores_and_reasons(name, text, truth, expected):
    assert grade(name, text, truth) == expected


@pytest.mark.parametrize(("name", "truth"), [("numeric", "seven"), ("choice", "12 cm")])
def test_a_truth_that_the_grader_cannot_read_is_an_error_and_not_a_wrong_answer(name, truth):
    [told] = load(name)([Item("\\boxed{7}", truth)])
    assert isinstance(told, str) and "the ground truth" in told


@pytest.mark.parametrize("name", ["length", "length:0", "length:x", "numeric:-1", "numeric:", "geo3k:1", "geo4k", "no_such_file.py:f"])
def test_a_name_that_cannot_be_is_refused_with_an_example(name):
    with pytest.raises(UserError):
        check_name(name)


@pytest.mark.parametrize("name", ["length:800", "numeric", "numeric:0.01", "math", "http://127.0.0.1:9/grade"])
def test_names_that_can_be(name):
    check_name(name)


def test_scores_of_several_graders_add_up_by_their_weights():
    weights = parse_also(["0.25*length:800", "-0.5 * format"])
    assert weights == {"length:800": 0.25, "format": -0.5}
    assert combine(Grade(1.0, 0.0, "", {"length:800": 0.5, "format": 1.0}), 0.1, weights) == pytest.approx(0.9 + 0.125 - 0.5)
    assert combine(Grade(0.0, 0.0, "timeout"), 0.1, weights) == 0.0


@pytest.mark.parametrize("entries", [["length:800"], ["x*format"], ["nan*format"], ["1*format", "2*format"], ["1*geo4k"]])
def test_a_sum_that_makes_no_sense_is_refused(entries):
    with pytest.raises(UserError):
        parse_also(entries)


@pytest.mark.parametrize(
    ("name", "texts", "answer"),
    [
        ("geo3k", ["\\boxed{1/2}", "\\boxed{0.5}", "\\boxed{\\frac{2}{4}}", "\\boxed{x = 0.50 cm}"], "1/2"),
        ("geo3k", ["\\boxed{2\\sqrt{3}}", "\\boxed{2 \\sqrt 3}"], "2sqrt(3)"),
        ("math", ["\\boxed{x \\in [0, 1)}", "\\boxed{[0,1)}"], "[0,1)"),
        ("numeric", ["the answer is 1,000", "\\boxed{1000}", "so 1000"], "1000"),
        ("choice", ["\\boxed{B}", "the answer is (b)"], "B"),
        ("exact", ["\\boxed{a  b}", "#### a b"], "a b"),
        ("format", ["\\boxed{7}"], None),
        ("geo3k", ["7", "\\boxed{}"], None),
    ],
)
def test_answers_that_are_the_same_get_one_spelling_so_that_their_votes_add_up(name, texts, answer):
    truth = {"choice": "B", "numeric": "7"}.get(name, "1/2")
    assert {grade(name, text, truth).answer for text in texts} == {answer}
