"""Run a function on many training ranks of one CPU machine: torch and Megatron are imported once, then every rank is forked from there.

Sixteen ranks start in seconds and share the memory of the imports. For tests, benchmarks and rehearsals; a run's ranks are Ray actors.
"""

import contextlib
import gc
import importlib
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from tandem.config.schema import ParallelConfig
from tandem.errors import RunError
from tandem.lifetime import die_with_parent


def fork_ranks(function: str, parallel: ParallelConfig, world_size: int, *, timeout_s: float = 600, **kwargs: Any) -> list[Any]:
    """Results of `function` ("module:name") on each rank, called with `parallel` and `kwargs`; process groups are ready when it runs.

    Args:
        kwargs, results: picklable; they stay on this machine, between processes of this program.

    Raises:
        RunError: a rank failed (its traceback is in the message) or the time is up; no rank is left running.
    """
    [results] = fork_each([(function, parallel, world_size, kwargs)], timeout_s=timeout_s)
    return results


def fork_each(calls: list[tuple[str, ParallelConfig, int, dict[str, Any]]], *, timeout_s: float = 600) -> list[list[Any]]:
    """`fork_ranks` for several (function, parallel, world size, kwargs), one after another: the imports, most of the time, happen once."""
    with tempfile.TemporaryDirectory(prefix="tandem-ranks-") as folder:
        (Path(folder) / "calls.pkl").write_bytes(pickle.dumps(calls))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
        command = [sys.executable, "-W", "ignore", "-m", "tandem.engine.fork_ranks", folder, str(os.getpid())]
        errors = Path(folder) / "stderr"
        with errors.open("wb") as stderr:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=stderr, start_new_session=True)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            what = ", ".join(f"{function} on {world_size} ranks" for function, _, world_size, _ in calls)
            raise RunError(f"{what} took longer than {timeout_s:.0f} s", "a rank hangs", "see its code") from error
        finally:
            _end_session(process)
        failures = sorted(Path(folder).glob("*/*.failed"))
        if process.returncode or failures:
            told = failures[0].read_text() if failures else errors.read_text(errors="replace")[-3000:]
            function, parallel = calls[int(failures[0].parent.name) if failures else 0][:2]
            rank = failures[0].stem if failures else "?"
            raise RunError(f"{function} failed on rank {rank} of ({parallel})", told, "see the traceback above")
        return [
            [pickle.loads((Path(folder) / str(index) / f"{rank}.pkl").read_bytes()) for rank in range(world_size)]
            for index, (_, _, world_size, _) in enumerate(calls)
        ]


def _end_session(process: subprocess.Popen) -> None:
    """Kill what is left: ranks on a time-out."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _main(folder: Path, parent: int) -> int:
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))  # ranks, and what Megatron has started in them
    die_with_parent(parent, signal.SIGTERM)
    calls = pickle.loads((folder / "calls.pkl").read_bytes())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    from tandem.devices import cpu

    cpu.prepare_megatron(ParallelConfig())
    import torch

    torch.set_num_threads(1)
    functions = [getattr(importlib.import_module(module), name) for module, _, name in (call[0].partition(":") for call in calls)]
    import tandem.engine.engine  # noqa: F401  (imported before the fork)

    gc.freeze()  # the collector would touch, and so copy, the shared pages
    for index, (function, (_, parallel, world_size, kwargs)) in enumerate(zip(functions, calls)):
        (folder / str(index)).mkdir()
        if not _run_ranks(folder / str(index), function, parallel, world_size, kwargs):
            return 1
    return 0


def _run_ranks(folder: Path, call, parallel: ParallelConfig, world_size: int, kwargs: dict[str, Any]) -> bool:
    """Did all ranks succeed?"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os._exit(_rank_main(folder, call, parallel, rank, world_size, port, kwargs))
        ranks.append(pid)
    for _ in ranks:
        pid, status = os.wait()
        if status:  # the others wait for it in a collective
            for other in ranks:
                if other != pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(other, 9)
            return False
    return True


def _rank_main(folder: Path, call, parallel: ParallelConfig, rank: int, world_size: int, port: int, kwargs: dict[str, Any]) -> int:
    import torch

    from tandem.devices import cpu
    from tandem.engine import groups

    try:
        groups.initialize(cpu, groups.Rendezvous("127.0.0.1", port, rank, world_size), parallel, seed=0, timeout_s=300)
        result = call(parallel=parallel, **kwargs)
        torch.distributed.barrier()
        (folder / f"{rank}.pkl").write_bytes(pickle.dumps(result))
        torch.distributed.destroy_process_group()
    except BaseException:  # noqa: BLE001 - the edge of a rank: its traceback travels by file
        (folder / f"{rank}.failed").write_text(traceback.format_exc())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), int(sys.argv[2])))
