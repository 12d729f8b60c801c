"""A user's own function and a grader behind an address: what they are given, what they may return, and how long each response may take."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tandem.errors import RunError, UserError
from tandem.rewards import Grade, check_name, check_names
from tandem.rewards.pool import RewardPool

FILE = """
import asyncio, time
from neighbour import RIGHT

def single(text, ground_truth):
    if text == "hang":
        time.sleep(60)
    return float(text == ground_truth + RIGHT)

def asked_for_all(solution_str, ground_truth, data_source, extra_info, prompt="?"):
    return {"score": len(extra_info), "format": 0.5, "reason": f"{data_source}: {prompt}!"}

async def asynchronous(response):
    if response == "hang":
        await asyncio.sleep(60)
    await asyncio.sleep(0.3)
    if response == "raise":
        raise KeyError("lost")
    return response == "good"

def batch(texts, ground_truths):
    if "hang" in texts:
        time.sleep(60)
    return [{"score": len(texts), "reason": "batch"} for _ in texts]

async def asynchronous_batch(texts):
    return [len(texts) for _ in texts]

def short(texts):
    return [1.0]

def nothing(text):
    return None

def not_a_number(text):
    return float("nan")

def exits(text):
    raise SystemExit(1)

def own_grade(text):
    from tandem.rewards import Grade
    return Grade(float("nan") if text == "nan" else 0.5, 0.0, "A Word")

def an_array(text):
    import numpy
    return numpy.array([1.0, 0.0])

def leaves_a_child(text):
    import subprocess
    subprocess.run(["sleep", "4242"])

def forks(text):
    import os
    os.fork()
    return 1.0

def odd(text, wish):
    return 1.0

def mixed(text, texts):
    return 1.0
"""


@pytest.fixture
def file(tmp_path) -> str:
    (tmp_path / "my_rewards.py").write_text(FILE)
    (tmp_path / "neighbour.py").write_text("RIGHT = '!'\n")
    return str(tmp_path / "my_rewards.py")


@pytest.fixture
def grade(request):
    """Grades with a pool of its own."""

    def run(name: str, items: list, timeout_s: float = 10.0, **settings) -> list[Grade]:
        pool = RewardPool(name, 1, timeout_s, **settings)
        request.addfinalizer(pool.close)
        return pool.grade(items)

    return run


def test_a_function_of_one_response_is_called_with_what_it_asks_for(file, grade):
    assert grade(f"{file}:single", [("a!", "a"), ("b", "a")]) == [Grade(1.0, 1.0, "correct"), Grade(0.0, 0.0, "wrong")]
    item = ("text", "truth", "geo", "How many?", {"a": 1, "b": b"bytes"})
    assert grade(f"{file}:asked_for_all", [item]) == [Grade(2.0, 0.5, "geo_how_many")]


def test_a_function_of_several_gets_them_together_and_one_that_hangs_costs_no_other(file, grade):
    scores = [g.accuracy for g in grade(f"{file}:batch", [("x", "")] * 10, batch_size=4)]
    assert scores == [4.0] * 8 + [2.0] * 2
    grades = grade(f"{file}:batch", [("x", ""), ("hang", ""), ("y", "")], timeout_s=1.0)
    assert [(g.accuracy, g.reason) for g in grades] == [(1.0, "batch"), (0.0, "timeout"), (1.0, "batch")]


def test_an_async_function_is_awaited_for_many_responses_at_once(file, grade):
    items = [("good", ""), ("bad", ""), ("raise", "")] + [("good", "")] * 29
    began = time.monotonic()
    reasons = [g.reason for g in grade(f"{file}:asynchronous", items, batch_size=32)]
    assert time.monotonic() - began < 0.3 * len(items) / 2, "one by one it takes 9.6 s"
    assert reasons == ["correct", "wrong", "failed"] + ["correct"] * 29
    assert [g.reason for g in grade(f"{file}:asynchronous", [("good", ""), ("hang", "")], timeout_s=1.0)] == ["correct", "timeout"]
    assert [g.accuracy for g in grade(f"{file}:asynchronous_batch", [("x", "")] * 3)] == [3.0] * 3


@pytest.mark.parametrize("function", ["short", "nothing", "not_a_number"])
def test_an_answer_that_is_no_score_stops_the_run_and_says_so(file, grade, function):
    with pytest.raises(RunError, match="must return"):
        grade(f"{file}:{function}", [("x", ""), ("y", "")])


@pytest.mark.parametrize(
    ("function", "what"),
    [("missing", "no function 'missing'"), ("odd", "asks for 'wish'"), ("mixed", "for one response and for several")],
)
def test_a_function_that_cannot_be_called_is_refused_before_anything_starts(file, function, what):
    with pytest.raises(UserError, match=what):
        check_name(f"{file}:{function}")


def test_a_file_that_cannot_be_read_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:")
    for name in ("broken.py", "absent.py"):
        with pytest.raises(UserError, match=name):
            check_name(f"{tmp_path / name}:f")


def test_a_further_grader_s_score_stands_beside_the_first_one_s(file, grade):
    [both] = grade("exact", [("\\boxed{a}", "a")], also=["length:3", f"{file}:single"])
    assert both == Grade(1.0, 1.0, "correct", {"length:3": 0.0, f"{file}:single": 0.0})


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        item = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if item["text"] == "hang":
            time.sleep(5)
        status = 500 if item["text"] == "break" else 200
        answer = json.dumps({"score": float(item["text"] == item["ground_truth"]), "reason": item["data_source"]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


def test_a_grader_behind_an_address(grade):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        items = [("a", "a", "geo"), ("b", "a", "geo"), ("break", "a", "geo"), ("hang", "a", "geo"), ("a", "a", "math")]
        reasons = [(g.accuracy, g.reason) for g in grade(f"http://127.0.0.1:{server.server_port}/grade", items, timeout_s=1.0)]
    finally:
        server.shutdown()
    assert reasons == [(1.0, "geo"), (0.0, "geo"), (0.0, "failed"), (0.0, "timeout"), (1.0, "math")]


def test_an_address_where_nobody_answers_stops_the_run(grade):
    with pytest.raises(RunError, match="Connection refused"):
        grade("http://127.0.0.1:9/grade", [("a", "a")])


@pytest.mark.parametrize(("function", "why"), [("exits", "crashed"), ("an_array", "TypeError")])
def test_a_grader_without_a_verdict_on_anything_stops_the_run_instead_of_training_on_zeros(file, grade, function, why):
    with pytest.raises(RunError, match="failed on every response") as told:
        grade(f"{file}:{function}", [("a", ""), ("b", "")])
    assert why in told.value.why


def test_a_grade_made_by_the_user_is_looked_at_like_any_other_answer(file, grade):
    grades = grade(f"{file}:own_grade", [("x", ""), ("nan", "")])
    assert (grades[0], grades[1].reason) == (Grade(0.5, 0.0, "A Word"), "failed")


def test_what_a_grader_has_started_ends_with_it(file, grade):
    import psutil

    sleeping = lambda: [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4242"]]  # noqa: E731
    assert [g.reason for g in grade(f"{file}:leaves_a_child", [("x", "")], timeout_s=1.0)] == ["timeout"]
    ends = time.monotonic() + 5
    while sleeping() and time.monotonic() < ends:
        time.sleep(0.05)
    assert sleeping() == []


def test_a_child_that_comes_back_from_a_grader_does_not_answer_too(file, grade):
    assert [g.accuracy for g in grade(f"{file}:forks", [(str(n), "") for n in range(6)])] == [1.0] * 6


def test_a_grader_asked_twice_is_refused_and_one_that_cannot_be_loaded_is_told_before_it_grades(file, tmp_path):
    with pytest.raises(UserError, match="names 'geo3k'"):
        check_names("geo3k", ["0.5*geo3k"])
    check_names("geo3k", ["0.5*exact"])
    (tmp_path / "broken.py").write_text("import there_is_no_such_package\ndef f(text): return 1.0\n")
    pool = RewardPool(f"{tmp_path / 'broken.py'}:f", 1, 5.0)
    try:
        with pytest.raises(UserError, match="cannot be loaded"):
            pool.wait_until_ready()
    finally:
        pool.close()


def test_graders_of_two_folders_have_each_its_own_helper_whatever_it_is_called_and_whenever_it_is_imported(tmp_path):
    """One helper is imported at the top, one in the middle of a call, and one is called like a package that is loaded already."""
    names = []
    for folder, sign in (("a", "+"), ("b", "-")):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "helper.py").write_text(f"SIGN = '{sign}'\n")
        (tmp_path / folder / "late.py").write_text(f"SIGN = '{sign}'\n")
        (tmp_path / folder / "sympy.py").write_text(f"SIGN = '{sign}'\n")
        (tmp_path / folder / "deep" / "__init__.py").write_text("from deep.inner import SIGN\n")
        (tmp_path / folder / "deep" / "inner.py").write_text(f"SIGN = '{sign}'\n")
        (tmp_path / folder / "json.py").write_text("broken: never imported in place of Python's own\n")
        body = "import json\nfrom helper import SIGN\ndef f(text):\n    import late, sympy, deep\n"
        body += "    return json.loads('1') * (text == SIGN + late.SIGN + sympy.SIGN + deep.SIGN)\n"
        (tmp_path / folder / "grader.py").write_text(body)
        names.append(f"{tmp_path / folder / 'grader.py'}:f")
    pool = RewardPool("geo3k", 1, 10, also=names)
    try:
        grades = pool.grade([("++++", "7"), ("----", "7"), ("<think></think>\\boxed{7}", "7")])
    finally:
        pool.close()
    assert [[grade.also[name] for name in names] for grade in grades] == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert grades[2].accuracy == 1.0
