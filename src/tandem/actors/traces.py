"""What one process writes of a step: the device's operations by torch's profiler, and Python calls by VizTracer."""

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tandem.track import profiles

_MIN_CALL_US = 100  # shorter calls are left out of a timeline: there are millions
_MAX_CALLS = 1_000_000  # of one process


class Operations:
    """Torch's own profiler of the device, from now on."""

    def __init__(self, device: Any):
        self._profiler = device.profiler()
        self._profiler.start()

    def write(self, run_dir: Path, step: int, rank: int) -> Path:
        """End, and write the trace; it has its name once it is whole."""
        self._profiler.stop()
        path = profiles.trace_path(run_dir, step, rank)
        plain, packed = path.with_suffix(".tmp"), path.with_suffix(".tmp.gz")
        self._profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
            shutil.copyfileobj(source, target)
        plain.unlink()
        os.replace(packed, path)
        return path


class Timeline:
    """Python calls of this thread, and of threads that it starts, from now on."""

    def __init__(self, process: str):
        from viztracer import VizTracer

        self._process = process
        self._tracer = VizTracer(tracer_entries=_MAX_CALLS, min_duration=_MIN_CALL_US, verbose=0)
        self._tracer.start()

    def write(self, run_dir: Path, step: int) -> str:
        """End, and write this process's part; returns its path."""
        self._tracer.stop()
        path = profiles.timeline_path(run_dir, step, self._process)
        self._tracer.save(str(path))
        self._tracer.terminate()
        _name_process(path, self._process)
        return str(path)


def _name_process(path: Path, name: str) -> None:
    """VizTracer calls every process MainProcess."""
    trace = json.loads(path.read_text(encoding="utf-8"))
    for event in trace["traceEvents"]:
        if event.get("ph") == "M" and event.get("name") == "process_name":
            event["args"]["name"] = name
    path.write_text(json.dumps(trace), encoding="utf-8")


def join_timeline(run_dir: Path, step: int, parts: list[Path]) -> Path:
    """One file of all processes' parts, which are removed."""
    path = profiles.timeline_path(run_dir, step)
    events = [event for part in parts for event in json.loads(part.read_text(encoding="utf-8"))["traceEvents"]]
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    os.replace(unfinished, path)
    for part in parts:
        part.unlink()
    return path
