"""The pool: whatever a grader does, every item gets a grade, in order, and no process stays."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import tandem.rewards
from tandem.errors import RunError, UserError
from tandem.rewards import Grade
from tandem.rewards.pool import RewardPool
from tests.run.marked import command_of

BOMB = "<think></think>\\boxed{9**9**9}", "x+2"  # mathruler takes it to sympy, which would compute it
RIGHT = "<think></think>\\boxed{7}", "7"
WRONG = "<think></think>\\boxed{8}", "7"

# A grader that does what its text says. `{ground truth}` is a folder for what must outlive the process.
PUPPET = """
import os, pathlib, time

def grade(text, folder):
    what, _, argument = text.partition(" ")
    if what == "sleep":
        time.sleep(float(argument))
    if what == "die":
        os._exit(3)
    if what == "die_once" and not pathlib.Path(folder, argument).exists():
        pathlib.Path(folder, argument).touch()
        os._exit(3)
    if what == "raise":
        raise KeyError(argument)
    if what == "eat":
        bytearray(16 << 30)
    if what == "print":
        os.write(1, b"noise on stdout")
    from tandem.rewards.types import Grade
    return Grade(1.0, 0.0, argument or what)
"""


@pytest.fixture
def puppet(tmp_path, monkeypatch) -> str:
    """The name of a grader that the workers know too: they find it through their start-up file."""
    (tmp_path / "puppet_grader.py").write_text(PUPPET)
    (tmp_path / "sitecustomize.py").write_text("import tandem.rewards\ntandem.rewards.REWARDS['puppet'] = 'puppet_grader'\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setitem(tandem.rewards.REWARDS, "puppet", "puppet_grader")
    return "puppet"


@pytest.fixture
def pools():
    """Makes pools and closes them."""
    made: list[RewardPool] = []

    def make(*args) -> RewardPool:
        made.append(RewardPool(*args))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def starters() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "tandem.rewards.starter" in command_of(p)]


def workers() -> list[psutil.Process]:
    return [worker for starter in starters() for worker in starter.children()]


def test_grades_come_in_the_order_of_the_items_however_long_each_takes(puppet, pools):
    items = [(f"sleep {0.2 if i % 5 == 0 else 0.001 * i:.3f}", "") for i in range(20)]
    seen = []
    grades = pools(puppet, 2, 10.0).grade(items, lambda done, total: seen.append((done, total)))
    assert [grade.reason for grade in grades] == [text.removeprefix("sleep ") for text, _ in items]
    assert seen == [(i, 20) for i in range(1, 21)]


def test_a_bomb_ends_at_the_time_limit_and_the_pool_goes_on(pools):
    pool = pools("geo3k", 1, 1.0)
    assert pool.grade([RIGHT])[0].reason == "correct"  # started
    began = time.monotonic()
    grades = pool.grade([RIGHT, BOMB, WRONG])
    assert [(g.accuracy, g.reason) for g in grades] == [(1.0, "correct"), (0.0, "timeout"), (0.0, "wrong")]
    assert grades[1] == Grade(0.0, 0.0, "timeout") and time.monotonic() - began > 1.0
    assert pool.grade([RIGHT]) == [Grade(1.0, 1.0, "correct")]


def test_an_item_that_kills_its_worker_counts_as_crashed_and_costs_no_other(puppet, pools):
    grades = pools(puppet, 2, 10.0).grade([("ok a", ""), ("die", ""), ("ok b", ""), ("ok c", "")])
    assert [grade.reason for grade in grades] == ["a", "crashed", "b", "c"]


def test_an_item_whose_worker_died_for_another_reason_is_graded_again(puppet, pools, tmp_path):
    assert pools(puppet, 1, 10.0).grade([("die_once again", str(tmp_path))])[0] == Grade(1.0, 0.0, "again")


def test_a_worker_killed_from_outside_while_it_grades_or_rests_loses_nothing(puppet, pools):
    pool = pools(puppet, 2, 30.0)
    assert len(pool.grade([("sleep 0.2", "")] * 8)) == 8
    victims = workers()
    victims[0].kill()  # at rest
    _until(lambda: not victims[0].is_running(), 10)
    timer = threading.Timer(0.5, victims[1].kill)  # at work
    timer.start()
    grades = pool.grade([(f"sleep {seconds}", "") for seconds in (1.0, 1.1, 0.0)])
    timer.join()
    assert [grade.reason for grade in grades] == ["1.0", "1.1", "0.0"]
    assert len(workers()) == 2


def test_a_worker_killed_while_it_starts_is_started_again(puppet, pools):
    pool = pools(puppet, 1, 30.0)
    starters()[0].kill()  # which takes its workers with it
    assert [grade.reason for grade in pool.grade([("ok a", "")])] == ["a"]


def test_when_the_process_that_forks_workers_is_killed_at_work_nothing_is_lost(puppet, pools):
    pool = pools(puppet, 2, 30.0)
    pool.grade([("ok a", "")])
    timer = threading.Timer(0.3, starters()[0].kill)
    timer.start()
    assert [grade.reason for grade in pool.grade([("sleep 0.8", ""), ("sleep 0.9", ""), ("ok a", "")])] == ["0.8", "0.9", "a"]
    timer.join()


def test_memory_is_limited(puppet, pools):
    assert [g.reason for g in pools(puppet, 1, 30.0).grade([("eat", ""), ("ok a", "")])] == ["failed", "a"]


def test_an_exception_costs_one_item_but_a_grader_that_always_raises_stops_the_run(puppet, pools, caplog):
    pool = pools(puppet, 1, 10.0)
    assert [grade.reason for grade in pool.grade([("raise this", ""), ("ok a", "")])] == ["failed", "a"]
    assert "KeyError: 'this'" in caplog.text
    with pytest.raises(RunError, match="KeyError: 'that'"):
        pool.grade([("raise that", ""), ("raise that", "")])


def test_what_a_grader_prints_does_not_garble_the_answers(puppet, pools):
    assert [grade.reason for grade in pools(puppet, 1, 10.0).grade([("print a", ""), ("print b", "")])] == ["a", "b"]


def test_text_of_any_kind_and_size_arrives(puppet, pools):
    texts = ["ok " + "x" * 3_000_000, "ok \ud800 lone surrogate", "ok line\nbreak \0 ✓"]
    assert [grade.reason for grade in pools(puppet, 1, 10.0).grade([(text, "") for text in texts])] == [text[3:] for text in texts]


def test_nothing_to_grade_needs_no_worker(pools):
    assert pools("geo3k", 1, 1.0).grade([]) == []


def test_close_leaves_no_process_not_even_a_busy_one(puppet):
    pool = RewardPool(puppet, 2, 60.0)
    pool.grade([("ok a", "")])
    running = [*workers(), *starters()]
    assert len(running) == 3
    pool.close()
    pool.close()
    _until(lambda: not any(process.is_running() for process in running), 5)


def test_a_grader_that_does_not_import_is_an_error_not_a_wait(puppet, pools, tmp_path):
    (tmp_path / "puppet_grader.py").write_text("import no_such_package")
    with pytest.raises(UserError, match="No module named 'no_such_package'"):
        pools(puppet, 1, 10.0).grade([("ok a", "")])


def test_an_unknown_reward_starts_nothing():
    with pytest.raises(UserError, match="geo3k"):
        RewardPool("geo4k", 1, 1.0)
    assert not starters()


def test_the_caller_s_folder_is_not_searched_for_modules(pools, tmp_path, monkeypatch):
    (tmp_path / "sympy.py").write_text("raise RuntimeError('imported from the working folder')")
    monkeypatch.chdir(tmp_path)
    assert pools("geo3k", 1, 10.0).grade([RIGHT])[0].reason == "correct"


def test_workers_die_with_their_parent_even_in_the_middle_of_a_bomb(tmp_path: Path):
    code = f"""
from tandem.rewards.pool import RewardPool
pool = RewardPool("geo3k", 2, 600.0)
pool.grade([{RIGHT!r}])
import psutil
print(*(worker.pid for worker in psutil.Process().children(recursive=True)), flush=True)
pool.grade([{BOMB!r}, {RIGHT!r}])
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    busy = [psutil.Process(pid) for pid in pids]
    _until(lambda: any(process.cpu_percent(0.2) > 20 for process in busy), 30)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _until(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in busy), 5)


def _until(condition, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_a_thousand_items_with_twenty_bombs_cost_the_bombs_time_and_nothing_is_lost(pools):
    limit_s, num_workers = 1.0, 4
    pool = pools("geo3k", num_workers, limit_s)
    pool.grade([RIGHT] * num_workers)  # started
    items = [BOMB if i % 50 == 7 else (f"<think></think>\\boxed{{{i}}}", str(i + i % 2)) for i in range(1000)]
    began = time.monotonic()
    reasons = [grade.reason for grade in pool.grade(items)]
    assert reasons == ["timeout" if i % 50 == 7 else "correct" if i % 2 == 0 else "wrong" for i in range(1000)]
    assert time.monotonic() - began < limit_s * -(-20 // num_workers) + 8
