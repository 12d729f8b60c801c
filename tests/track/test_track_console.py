"""Progress for the one who waits: plain lines in a file, bars on a terminal, and never a long silence."""

import io
import itertools
import json
import os
import pickle
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tandem.track.console import Console
from tandem.track.events import Note, PhaseAdvanced, PhaseEnded, PhaseStarted, StepDone, Table
from tandem.track.steps import step_line

EVENTS = [
    PhaseStarted("rollout", 4),
    PhaseAdvanced("rollout", 2, 4),
    PhaseEnded("rollout", 1.25),
    StepDone({"step": 3, "reward/mean": 0.5, "kl/ref": None}),
    Note("device cpu: no accelerator"),
    Table("Summary", ("what", "value"), (("reward", "0.5"),)),
]


def shown(*events: object, **options: object) -> str:
    file = io.StringIO()
    with Console(file=file, **options) as console:
        for event in events:
            console.emit(event)
    return file.getvalue()


def test_events_cross_process_borders() -> None:
    assert [pickle.loads(pickle.dumps(event)) for event in EVENTS] == EVENTS


def test_plain_output_has_a_line_for_each_thing_and_no_control_codes() -> None:
    text = shown(*EVENTS)
    for part in ("rollout ...", "rollout: 1.2 s", "step 3  reward 0.500  kl nan", "device cpu: no accelerator", "Summary", "what"):
        assert part in text
    assert "\x1b" not in text


def test_a_phase_of_every_step_is_announced_only_the_first_time() -> None:
    text = shown(*[PhaseStarted("update"), PhaseEnded("update", 1.0)] * 5)
    assert text.count("update") == 2


def test_quiet_shows_tables_only() -> None:
    text = shown(*EVENTS, quiet=True)
    assert "Summary" in text
    assert "rollout" not in text
    assert "device" not in text


def test_markup_and_control_codes_in_texts_are_shown_not_obeyed() -> None:
    text = shown(Note("[bold]see [red] \x1b[2Jlist[0]"), Table("t", ("",), (("[x]",),)))
    assert "[bold]see [red] [2Jlist[0]" in text
    assert "[x]" in text


def test_long_paths_are_not_broken_over_lines() -> None:
    path = "/somewhere/" + "deep/" * 20 + "report.html"
    assert path in shown(Table("Summary", ("", ""), (("report", path),)))
    assert path in shown(Note("log: " + path * 3))


class Timed(io.StringIO):
    """Remembers when it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.times = [time.monotonic()]

    def write(self, text: str) -> int:
        self.times.append(time.monotonic())
        return super().write(text)


def longest_silence(file: Timed) -> float:
    times = [*file.times, time.monotonic()]
    return max(b - a for a, b in itertools.pairwise(times))


def test_no_long_silence_whether_a_phase_is_open_or_not() -> None:
    file = Timed()
    with Console(file=file, silence_s=0.4) as console:
        time.sleep(1.0)
        console.emit(PhaseStarted("warm start", 10))
        console.emit(PhaseAdvanced("warm start", 5))
        time.sleep(1.0)
        silence = longest_silence(file)
    text = file.getvalue()
    assert silence < 0.8  # 0.4 s, and time for a busy machine
    assert "working ... " in text
    assert "warm start 5/10 ... " in text
    assert " s left" in text


def test_short_repeated_phases_that_show_no_line_do_not_count_as_a_sign_of_life() -> None:
    file = Timed()
    with Console(file=file, silence_s=0.4) as console:
        for _ in range(20):
            console.emit(PhaseStarted("update"))
            time.sleep(0.1)
            console.emit(PhaseEnded("update", 0.1))
        silence = longest_silence(file)
    assert silence < 0.8
    assert file.getvalue().count("\n") >= 4


def test_phase_seconds_add_up_even_when_quiet() -> None:
    with Console(quiet=True, file=io.StringIO()) as console:
        for seconds in (1.0, 2.0):
            console.emit(PhaseEnded("update", seconds))
        console.emit(PhaseEnded("rollout", 4.0))
    assert console.phase_seconds == {"update": 3.0, "rollout": 4.0}


def test_events_may_come_from_many_threads() -> None:
    file = io.StringIO()
    with Console(file=file) as console:
        threads = [threading.Thread(target=lambda n=n: [console.emit(Note(f"<{n}.{k}>")) for k in range(50)]) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(file.getvalue().split()) == sorted(f"<{n}.{k}>" for n in range(4) for k in range(50))


def test_events_of_phases_nobody_started_are_harmless() -> None:
    assert "update: 1.0 s" in shown(PhaseAdvanced("update", 3, 4), PhaseEnded("update", 1.0))
    assert "update: 1.0 s" in shown(PhaseAdvanced("update", 3, 4), PhaseEnded("update", 1.0), live=True)


def test_leaving_by_an_error_ends_the_ticker() -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(KeyboardInterrupt), console:
        console.emit(PhaseStarted("rollout"))
        raise KeyboardInterrupt
    assert not any(thread.name == "tandem-console" for thread in threading.enumerate())


def test_a_terminal_sees_a_bar_that_moves_and_gets_its_cursor_back(tmp_path: Path) -> None:
    code = (
        "import time\nfrom tandem.track.console import Console\nfrom tandem.track.events import *\n"
        "with Console() as console:\n"
        "    console.emit(PhaseStarted('rollout', 4)); console.emit(PhaseAdvanced('rollout', 3)); time.sleep(1.2)\n"
        "    console.emit(StepDone({'step': 1, 'reward/mean': 0.25})); console.emit(PhaseEnded('rollout', 1.2))\n"
    )
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=follower, stderr=follower, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(follower)
    text = b""
    try:
        while part := os.read(leader, 65536):
            text += part
    except OSError:  # how a pseudo-terminal says that the other side is gone
        pass
    finally:
        os.close(leader)
    assert process.wait(timeout=30) == 0
    shown_text = text.decode()
    assert "3/4" in shown_text
    assert "━" in shown_text
    assert "0:00:01" in shown_text  # elapsed, drawn again without a new event
    assert "step 1  reward 0.250" in shown_text
    assert shown_text.count("\x1b[?25h") == shown_text.count("\x1b[?25l") == 1  # cursor hidden once and shown once


def test_a_step_line_names_the_step_and_the_metrics_it_has() -> None:
    assert step_line({"step": 2, "reward/mean": 0.5, "loss/policy": -0.01, "version": 3}) == "step 2  reward 0.500  loss -0.0100"


def test_a_step_line_has_the_seconds_of_each_phase_and_the_memory() -> None:
    metrics = {"step": 2, "entropy": 0.5, "clip_share": 0.0125, "time/rollout_s": 3.14, "time/update_s": None, "time/step_s": 5.0}
    metrics |= {"memory/device_peak_bytes": 3 << 29, "memory/host_peak_bytes": 1 << 30}
    line = "step 2  entropy 0.500  clipped 1.2%  seconds 5.0  (rollout 3.1, update nan)  memory 1.5+1.0 GiB"
    assert step_line(metrics) == line


def test_verbose_shows_every_metric_and_every_phase_each_time() -> None:
    phases = [PhaseStarted("update"), PhaseEnded("update", 1.0)] * 3
    text = shown(*phases, StepDone({"step": 3, "reward/mean": 0.5, "grade/correct_share": 0.25}), verbose=True)
    assert text.count("update: 1.0 s") == 3
    assert "reward 0.500" in text and "grade/correct_share 0.25" in text


def test_log_json_is_an_object_a_line_for_each_kind_of_event() -> None:
    events = [json.loads(line) for line in shown(*EVENTS, as_json=True).splitlines()]
    kinds = ["phase_started", "phase_advanced", "phase_ended", "step", "note", "table"]
    assert [event["event"] for event in events] == kinds
    assert events[3]["metrics"] == {"step": 3, "reward/mean": 0.5, "kl/ref": None}
    assert events[5]["rows"] == [["reward", "0.5"]]
    assert all(abs(event["time"] - time.time()) < 60 for event in events)


def test_log_json_tells_progress_once_a_second_and_a_long_silence() -> None:
    advances = [PhaseAdvanced("rollout", done, 100) for done in range(100)]
    assert shown(PhaseStarted("rollout", 100), *advances, as_json=True).count("phase_advanced") == 1
    file = io.StringIO()
    with Console(file=file, silence_s=0.2, as_json=True) as console:
        console.emit(PhaseStarted("update"))
        time.sleep(0.6)
    assert {"event": "working", "phases": ["update"]}.items() <= json.loads(file.getvalue().splitlines()[-1]).items()


def test_a_phase_without_units_is_expected_to_take_what_it_took_before() -> None:
    file = io.StringIO()
    with Console(file=file, silence_s=0.2) as console:
        for seconds in (5.0, 7.0):
            console.emit(PhaseStarted("update"))
            console.emit(PhaseEnded("update", seconds))
        console.emit(PhaseStarted("update"))
        time.sleep(0.6)
    assert "update ... 0 s, about 6 s left" in file.getvalue()


def test_a_closed_pipe_is_told_once_and_nothing_more_is_written() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    told: list[str] = []
    for options in ({}, {"as_json": True}):
        file = Closed()
        with open(os.devnull) as somewhere, Console(file=file, silence_s=0.1, **options) as console:
            file.fileno = lambda: somewhere.fileno()  # type: ignore[method-assign]
            console.on_reader_gone = lambda: told.append("gone")
            console.emit(Note("one"))
            console.emit(Note("two"))
            time.sleep(0.3)
        assert told.pop() == "gone" and not told


def test_paths_of_the_summary_are_whole_on_a_narrow_terminal() -> None:
    path = "runs/a-long-project-name/a-long-experiment-name-20261203-074500/checkpoints/step_000100"
    text = shown(Table("Summary", ("", ""), (("steps", "100"),), (("checkpoint", path),)), live=True)
    assert f"checkpoint: {path}" in text
