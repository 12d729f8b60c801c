"""Runs the real command in a process of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float


def tandem(*arguments: str, cwd: Path, timeout: float = 60) -> Ended:
    return _run([sys.executable, "-m", "tandem", *arguments], cwd, timeout)


def tandem_with_launch(body: str, *arguments: str, cwd: Path) -> Ended:
    """The command with `run.launch.launch(config, task, console)` made of `body`: what a run does, without one."""
    return _run([sys.executable, "-c", launch_code(body), *arguments], cwd, 60)


def launch_code(body: str) -> str:
    """The program that `tandem_with_launch` runs."""
    code = "import sys, types, os, signal, time\nfrom pathlib import Path\nfrom tandem.errors import *\nfrom tandem.track.events import *\n"
    code += "import tandem.run.launch\nreal = tandem.run.launch\n" if "StopSignals" in body else ""
    code += "def launch(config, task, console):\n" + textwrap.indent(textwrap.dedent(body), "    ") + "\n"
    code += "sys.modules['tandem.run.launch'] = types.SimpleNamespace(launch=launch)\n"
    return code + "from tandem.cli.main import main\nmain()\n"


def _hear_sigint() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and so this test's, start deaf to it


def _run(command: list[str], cwd: Path, timeout: float) -> Ended:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cwd / "cache"), "COLUMNS": "80"}
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout, env=environment, preexec_fn=_hear_sigint)
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - began)
