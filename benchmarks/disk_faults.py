"""What does a run do when its disk fails? Real runs on a small disk of their own that fills up, turns read-only or loses folders.

    python benchmarks/disk_faults.py [--only NAME ...] [--no-resume] [--json FILE]

Each fault strikes a run of 3 steps on CPU that saves after every step. The run must end with one message (what, why, fix) and the
right exit code, leave no process and no shared memory, and every checkpoint that was whole and not removed must still have its bytes. Then
the disk is mended and `resume=auto` must end like a run that nothing happened to, bit for bit. Exits 1 unless all of that holds.

Disks are mounted in a namespace of this script's own (Linux, `unshare`; root is not needed): nothing outside sees them.
"""

import argparse
import json
import os
import shutil
import subprocess
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
from tandem.config.checkpointfolder import checkpoints_in, read_checkpoint
from tandem.errors import UserError
from tandem.sync.digest import file_digest
from tests.run.equal_runs import differences
from tests.run.marked import marked

SETTINGS = (
    *("trainer.total_steps=3", "trainer.save_freq=1", "trainer.deterministic=true", "data.train_batch_size=8", "data.val_max_rows=8"),
    *("rollout.n=4", "algorithm.kl.coef=0", "warm_start.max_steps=0", "trainer.val_before_train=false"),
)
DISK_BYTES = 96 << 20
LIMIT_S = 400.0
INSIDE = "TANDEM_OWN_MOUNTS"


def fill(run: Path, left: int = 0) -> None:
    """Leave this many bytes of the disk."""
    with (run.parent / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(run).free - left))


def read_only(folder: Path) -> None:
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)


def mend(run: Path) -> None:
    for folder in (run / "checkpoints", run / "rollouts", run / "logs", run):
        subprocess.run(["umount", "-l", folder], stderr=subprocess.DEVNULL)
    (run.parent / "filler").unlink(missing_ok=True)
    for file in (run / "checkpoints", run / "export"):
        if file.is_file():
            file.unlink()


def stand_in_the_way(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file")


@dataclass(frozen=True)
class Case:
    when: str  # a file of the run whose appearance is the moment; empty: before the start
    strike: Callable[[Path], None]
    code: int = 1


SAVED, WRITING, LAST = "checkpoints/step_000001", "checkpoints/step_000002.tmp", "checkpoints/step_000003"
CASES = {
    "full": Case(SAVED, fill),
    "full for a checkpoint": Case(SAVED, lambda run: fill(run, 2 << 20)),
    "full while writing one": Case(WRITING, fill),
    "full for the export": Case(LAST, lambda run: fill(run, 1 << 20)),
    "full for the report": Case("export.json", fill),
    "read-only": Case(SAVED, read_only),
    "read-only checkpoints": Case(SAVED, lambda run: read_only(run / "checkpoints")),
    "read-only rollouts": Case(SAVED, lambda run: read_only(run / "rollouts")),
    "read-only logs": Case(SAVED, lambda run: read_only(run / "logs"), code=0),  # open files of it can still be written
    "run removed": Case(SAVED, lambda run: shutil.rmtree(run, ignore_errors=True)),
    "run moved": Case(SAVED, lambda run: run.rename(run.with_name("elsewhere"))),
    "checkpoints removed": Case(SAVED, lambda run: shutil.rmtree(run / "checkpoints", ignore_errors=True)),
    "a checkpoint removed": Case(SAVED, lambda run: shutil.rmtree(run / SAVED), code=0),
    "removed while writing it": Case(WRITING, lambda run: shutil.rmtree(run / WRITING, ignore_errors=True)),
    "a file for checkpoints": Case("", lambda run: stand_in_the_way(run / "checkpoints"), code=2),
    "a file for export": Case("", lambda run: stand_in_the_way(run / "export"), code=2),
}  # fmt: skip


@dataclass
class Outcome:
    fault: str
    code: int = -1
    seconds: float = 0.0  # from the fault to the end
    message: str = ""
    wrong: list[str] = field(default_factory=list)


def bytes_of(run: Path) -> dict[str, str]:
    """Files of all whole checkpoints and their blake3."""
    return {str(file): file_digest(file) for path in checkpoints_in(run) for file in path.rglob("*") if file.is_file()}


def one(name: str, folder: Path, whole: Path, resume: bool) -> Outcome:
    case, outcome, mark = CASES[name], Outcome(name), uuid.uuid4().hex
    disk = folder / name.replace(" ", "_")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=True)
    run = disk / "run"
    if not case.when:
        case.strike(run)
    output, errors = disk.with_suffix(".out"), disk.with_suffix(".err")  # beside the disk
    process = start(run, mark, SETTINGS, output, errors)
    ends, family = time.monotonic() + LIMIT_S, set[Path]()
    while case.when and not (run / case.when).exists() and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.01)
    before = bytes_of(run)
    began = time.monotonic()
    if case.when:
        family = shared_memory_of(marked(mark))
        case.strike(run)
    outcome.code = wait(process, mark, LIMIT_S)
    outcome.seconds = time.monotonic() - began
    told = errors.read_text(errors="replace")
    outcome.message = " ".join(told.split())
    if outcome.code != case.code:
        outcome.wrong.append(f"exit code {outcome.code} instead of {case.code}")
    if outcome.code and (
        told.count("tandem: ") != 1 or told.count("\n  why: ") != 1 or told.count("\n  fix: ") != 1 or "Traceback" in told
    ):
        outcome.wrong.append("not one message with what, why and fix")
    outcome.wrong += [f"left: {left}" for left in left_behind(mark, family, run)]
    mend(run)
    after = bytes_of(run)
    removed = "removed" in name or "moved" in name
    outcome.wrong += [f"changed: {file}" for file, digest in before.items() if after.get(file, digest if removed else "") != digest]
    for path in checkpoints_in(run):
        try:
            read_checkpoint(path)
        except UserError as error:
            outcome.wrong.append(f"{path.name} does not load: {error.what}: {error.why}")
    if resume:
        code = wait(start(run, mark, [*SETTINGS, "resume=auto"], output), mark, LIMIT_S)
        different = differences(run, whole) if code == 0 else [f"it ended with exit code {code}"]
        outcome.wrong += [f"resumed: {what}" for what in different]
    subprocess.run(["umount", "-l", disk], check=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help="some faults: " + ", ".join(CASES))
    parser.add_argument("--no-resume", action="store_true", help="do not go on afterwards: half the time")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if INSIDE not in os.environ:
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        return subprocess.run([*unshare, sys.executable, *sys.argv], env=os.environ | {INSIDE: "1"}).returncode
    console, outcomes = Console(), []
    table = Table("fault", "exit code", "s to the end", "as it must be", "message")
    with tempfile.TemporaryDirectory(prefix="tandem-disk-") as folder:
        (Path(folder) / "whole").mkdir()
        whole = Path(folder) / "whole" / "run"
        log = whole.parent.with_suffix(".log")
        if not arguments.no_resume and wait(start(whole, mark := uuid.uuid4().hex, SETTINGS, log), mark, LIMIT_S):
            console.print(log.read_text())
            return 1
        for name in arguments.only or CASES:
            outcome = one(name, Path(folder), whole, not arguments.no_resume)
            outcomes.append(outcome)
            console.print(outcome, highlight=False)
            table.add_row(name, str(outcome.code), f"{outcome.seconds:.1f}", str(not outcome.wrong), outcome.message[:90])
    console.print(table)
    num_good = sum(not outcome.wrong for outcome in outcomes)
    if arguments.json:
        result = {"num_faults": len(outcomes), "num_good": num_good, "faults": [asdict(outcome) for outcome in outcomes]}
        arguments.json.write_text(json.dumps(result, indent=1))
    return int(num_good < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
