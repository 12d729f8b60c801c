"""Do runs survive? kill -9 of a process of a small run at a random moment; what goes on must end like a run that nothing happened to.

    python benchmarks/faults.py [--kills N] [--seed S] [--process KIND] [--json FILE] [--keep FOLDER] [KEY=VALUE ...]

A run of 12 steps on CPU, saving every 2: two training ranks, two generators, graders, a reference policy that a warm start made. Each kill
has a run of its own. KIND is drawn, and the moment, evenly from the length of a whole run; a run that was over before then counts for
nothing, and tells how long a run is now. Where the terminal's side lives, the run goes on by itself (trainer.max_restarts), else it is
started again with resume=auto, at once. Then losses, gradient norms, sample ids, rewards and every other metric but times, all samples and
the exported files are compared with the uninterrupted run's, bit for bit; processes and shared memory that are left are counted. Exits 1
unless all are equal and nothing is left.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.real_runs import left_behind, start, wait
from tandem.actors.processes import shared_memory_of
from tests.run.equal_runs import differences
from tests.run.marked import command_of, marked

KINDS = {  # what stands in the command line of such a process
    "terminal": "-m tandem train",
    "controller": "ray::Controller",
    "rank": "ray::TrainRank",
    "generator": "ray::Generator",
    "grader": "tandem.rewards.starter",
    "raylet": "raylet/raylet",
    "gcs": "gcs_server",
}
SETTINGS = (
    *("trainer.total_steps=12", "trainer.save_freq=2", "trainer.test_freq=4", "trainer.deterministic=true", "trainer.max_restarts=1"),
    *("data.train_batch_size=8", "data.val_max_rows=8", "rollout.n=4", "algorithm.kl.coef=0.01", "warm_start.max_steps=40"),
)
OTHER_SETTINGS: list[str] = []  # of the command line
LIMIT_S = 600.0  # of one start of a run


@dataclass
class Kill:
    process: str
    phase: str = ""  # what the terminal had shown last
    after_s: float = 0.0
    num_starts: int = 1  # by hand, the first included
    num_restarts: int = 0  # by itself
    equal: bool = False
    seconds_lost: float = 0.0  # more than the whole run took
    different: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # processes and files in shared memory


def kill_one(process: subprocess.Popen, kill: Kill, mark: str, draw: random.Random, log: Path) -> set[Path]:
    """Kill one process of its kind, once the moment has come and there is one. Returns the run's files in shared memory."""
    ends = time.monotonic() + kill.after_s
    while process.poll() is None:
        if time.monotonic() >= ends and (found := [each for each in marked(mark) if KINDS[kill.process] in command_of(each)]):
            family = marked(mark)
            files = shared_memory_of(family)
            shown = log.read_text(errors="replace").strip().splitlines() or ["nothing shown"]
            kill.phase = shown[-1][:30].split("  ")[0]
            draw.choice(found).send_signal(signal.SIGKILL)
            return files
        time.sleep(0.1)
    return set()


def one(kind: str, number: int, whole: Path, whole_seconds: float, draw: random.Random) -> Kill:
    """A run of its own with one kill, brought to its end and compared."""
    run_dir, mark = whole.with_name(f"run{number:02d}"), uuid.uuid4().hex
    kill = Kill(kind, after_s=draw.uniform(0, whole_seconds))
    began = time.monotonic()
    settings, log = [*SETTINGS, *OTHER_SETTINGS, "resume=auto"], run_dir.with_suffix(".log")
    process = start(run_dir, mark, settings, log)
    files = kill_one(process, kill, mark, draw, log)
    while wait(process, mark, LIMIT_S) and kill.num_starts < 3:
        kill.num_starts += 1
        process = start(run_dir, mark, settings, log)
    kill.seconds_lost = time.monotonic() - began - whole_seconds
    kill.num_restarts = len(list(run_dir.glob("logs/failure_*.log")))
    kill.different = differences(run_dir, whole) if process.returncode == 0 else [f"it ended with exit code {process.returncode}"]
    kill.left = left_behind(mark, files, run_dir)
    kill.equal = not kill.different
    if kill.equal and not kill.left:
        shutil.rmtree(run_dir)
        log.unlink()
    return kill


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--process", choices=KINDS, help="kill this kind only; the default is all, in turn")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="other settings of the runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the runs; those that were equal are removed")
    arguments = parser.parse_args()
    OTHER_SETTINGS.extend(arguments.settings)
    draw, console, kills = random.Random(arguments.seed), Console(), []
    table = Table("process", "while", "after s", "starts", "restarts", "equal", "s lost", "left")
    with tempfile.TemporaryDirectory(prefix="tandem-faults-") as folder:
        whole = (arguments.keep or Path(folder)).absolute() / "whole"
        whole.parent.mkdir(parents=True, exist_ok=True)
        for before in whole.parent.glob("*"):
            if before.name == "whole" or before.name.startswith("run"):
                shutil.rmtree(before) if before.is_dir() else before.unlink()
        mark, began = uuid.uuid4().hex, time.monotonic()
        log = whole.with_suffix(".log")
        if wait(start(whole, mark, [*SETTINGS, *OTHER_SETTINGS], log), mark, LIMIT_S):
            console.print(log.read_text())
            return 1
        whole_seconds = time.monotonic() - began
        console.print(f"the whole run: {whole_seconds:.0f} s")
        kinds: list[str] = []
        while len(kills) < arguments.kills:
            if not kinds:  # each kind once, in a new order, before one comes again
                kinds = [arguments.process] if arguments.process else draw.sample([*KINDS], len(KINDS))
            kill = one(kinds[-1], len(kills), whole, whole_seconds, draw)
            if not kill.phase and kill.equal and not kill.left:  # the machine is faster than it was
                whole_seconds += kill.seconds_lost
                continue
            kinds.pop()
            kills.append(kill)
            cells = [kill.process, kill.phase, f"{kill.after_s:.0f}", kill.num_starts, kill.num_restarts, kill.equal]
            table.add_row(*map(str, cells), f"{kill.seconds_lost:.0f}", str(len(kill.left)))
            console.print(f"{len(kills)}: {kill}", highlight=False, soft_wrap=True)
    console.print(table)
    num_equal, num_left = sum(kill.equal for kill in kills), sum(len(kill.left) for kill in kills)
    console.print(f"{num_equal} of {len(kills)} runs ended equal; left behind: {num_left}")
    result = {"num_kills": len(kills), "num_equal": num_equal, "whole_seconds": whole_seconds, "kills": [asdict(kill) for kill in kills]}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    return int(num_equal < len(kills) or num_left > 0)


if __name__ == "__main__":
    sys.exit(main())
