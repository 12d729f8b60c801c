"""Does SIGTERM lose anything? A signal to the command of a small run, as a scheduler sends it, at several moments.

    python benchmarks/stop_signals.py [--only MOMENT ...] [--signal TERM|INT|HUP] [--no-resume] [--json FILE]

A run of 4 steps on CPU that saves every 2. The run must end with exit code 3 within the grace time, leave no process and no shared memory,
and have saved its step where one was done; then `resume=auto` must end like a run that nobody stopped, bit for bit. Exits 1 otherwise.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.real_runs import left_behind, start, wait
from tandem.actors.processes import shared_memory_of
from tandem.config.checkpointfolder import find_checkpoint
from tests.run.equal_runs import differences
from tests.run.marked import marked

GRACE_S, LEAST_MARGIN_S = 60.0, 20.0  # trainer.stop_grace_s; Ray and what it has started are ended after that
SETTINGS = (
    *("trainer.total_steps=4", "trainer.save_freq=2", "trainer.test_freq=2", "trainer.deterministic=true", "rollout.n=4"),
    *("data.train_batch_size=8", "data.val_max_rows=8", "algorithm.kl.coef=0.01", "warm_start.max_steps=20", "--log-json"),
    f"trainer.stop_grace_s={GRACE_S}",
)
LIMIT_S = 400.0


def phase(name: str, times: int = 1) -> Callable[[Path, str], bool]:
    """Whether a phase of this name has begun so many times."""
    return lambda run, told: told.count(f'"phase_started", "name": "{name}"') >= times


MOMENTS: dict[str, tuple[Callable[[Path, str], bool], bool]] = {  # when, and whether there must be a checkpoint afterwards
    "loading": (phase("starting the training ranks"), False),
    "warm start": (phase("warm start"), False),
    "rollout": (phase("rollout", 3), True),
    "update": (phase("update", 3), True),
    "writing a checkpoint": (lambda run, told: (run / "checkpoints" / "step_000002.tmp").exists(), True),
    "validation": (phase("validation", 2), True),
    "exporting": (phase("exporting"), True),
}


@dataclass
class Stop:
    moment: str
    code: int = -1
    seconds: float = 0.0  # from the signal to the end
    checkpoint: int = 0  # step of the newest
    wrong: list[str] = field(default_factory=list)


def one(moment: str, folder: Path, whole: Path | None, number: signal.Signals) -> Stop:
    """Args: whole: the run that nobody stopped; None: do not go on afterwards."""
    (has_come, saves), stop, mark = MOMENTS[moment], Stop(moment), uuid.uuid4().hex
    run = folder / moment.replace(" ", "_")
    settings, log = [*SETTINGS, "resume=auto"], run.with_suffix(".log")
    process = start(run, mark, settings, log)
    while not has_come(run, log.read_text(errors="replace")) and process.poll() is None:
        time.sleep(0.02)
    files, began = shared_memory_of(marked(mark)), time.monotonic()
    process.send_signal(number)
    stop.code = wait(process, mark, LIMIT_S)
    stop.seconds = time.monotonic() - began
    told = log.read_text(errors="replace")
    if stop.code != 3:
        stop.wrong.append(f"exit code {stop.code} instead of 3: {told.strip().splitlines()[-1][:200]}")
    if stop.seconds > GRACE_S + LEAST_MARGIN_S:
        stop.wrong.append(f"it took {stop.seconds:.0f} s")
    if "Traceback" in told:
        stop.wrong.append("a traceback was shown")
    stop.wrong += [f"left: {left}" for left in left_behind(mark, files, run)]
    found = find_checkpoint("auto", run)
    stop.checkpoint = found.step if found else 0
    if bool(found) != saves:
        stop.wrong.append("there is a checkpoint" if found else "there is no checkpoint")
    if whole:
        code = wait(start(run, mark, settings, log), mark, LIMIT_S)
        different = differences(run, whole) if code == 0 else [f"it ended with exit code {code}"]
        stop.wrong += [f"resumed: {what}" for what in different]
    return stop


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=MOMENTS, metavar="MOMENT", help="some moments: " + ", ".join(MOMENTS))
    parser.add_argument("--signal", choices=["TERM", "INT", "HUP"], default="TERM")
    parser.add_argument("--no-resume", action="store_true", help="do not go on afterwards: half the time")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console, stops = Console(), list[Stop]()
    table = Table("moment", "exit code", "s to the end", "checkpoint", "as it must be")
    with tempfile.TemporaryDirectory(prefix="tandem-signals-") as folder:
        whole = None if arguments.no_resume else Path(folder) / "whole"
        log = Path(folder) / "whole.log"
        if whole and wait(start(whole, mark := uuid.uuid4().hex, SETTINGS, log), mark, LIMIT_S):
            console.print(log.read_text())
            return 1
        for moment in arguments.only or MOMENTS:
            stop = one(moment, Path(folder), whole, signal.Signals[f"SIG{arguments.signal}"])
            stops.append(stop)
            console.print(stop, highlight=False)
            table.add_row(moment, str(stop.code), f"{stop.seconds:.1f}", str(stop.checkpoint), str(not stop.wrong))
    console.print(table)
    num_good = sum(not stop.wrong for stop in stops)
    if arguments.json:
        result = {"signal": arguments.signal, "num_stops": len(stops), "num_good": num_good, "stops": [asdict(stop) for stop in stops]}
        arguments.json.write_text(json.dumps(result, indent=1))
    return int(num_good < len(stops))


if __name__ == "__main__":
    sys.exit(main())
