"""The terminal's side of a run: start the cluster and the controller, show the news, and leave nothing behind however it ends."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from tandem import devices
from tandem.config.schema import Config
from tandem.errors import RunError
from tandem.run.run_dir import begin
from tandem.sync import buckets
from tandem.track.console import Console
from tandem.track.events import Note, PhaseEnded, PhaseStarted

_GROUPS = {"news": 8}


class RemoteTraceback(Exception):
    """The traceback of the controller's process, as the cause of what is raised here, so that the log shows both."""


def launch(config: Config, task: str, console: Console) -> dict[str, Any]:
    """Run `task` ("train", "sft", "eval" or "demo") to its end and return the summary.

    Raises:
        UserError, RunError: as the controller met them; the traceback is in logs/error.log.
        KeyboardInterrupt: Ctrl-C or SIGTERM; what could be saved within `trainer.stop_grace_s` is.
    """
    device, reason = devices.detect(config.device)
    config, run_dir = begin(config, device.NAME)
    console.emit(Note(f"device {device.NAME}: {reason}"))
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(config, task, run_dir, device, console)
    finally:
        _clean_up(run_dir)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _run(config: Config, task: str, run_dir: Path, device, console: Console) -> dict[str, Any]:
    from tandem.run import cluster

    began = time.monotonic()
    console.emit(PhaseStarted("starting the cluster"))
    import ray

    from tandem.run.controller import Controller

    cluster.start(config, device)
    cluster.check_resources(config, device)
    methods = {name: ray.method(concurrency_group="news")(getattr(Controller, name)) for name in ("news", "stop", "generated")}
    actor = ray.remote(concurrency_groups=_GROUPS)(type("Controller", (Controller,), methods))
    controller = actor.options(num_cpus=1).remote(config, task, str(run_dir))
    console.emit(PhaseEnded("starting the cluster", time.monotonic() - began))
    future = controller.run.remote(controller)
    try:
        result = _watch(future, controller, console)
    except KeyboardInterrupt:
        _stop_gently(config, future, controller, console)
        raise
    assert result is not None
    if "failure" in result:
        raise result["failure"] from RemoteTraceback(result["traceback"])
    return result


def _watch(future: Any, controller: Any, console: Console, deadline: float | None = None) -> dict[str, Any] | None:
    """Show the controller's events until its run is over; None when the deadline came first."""
    import ray

    while deadline is None or time.monotonic() < deadline:
        try:
            for event in ray.get(controller.news.remote(0.3), timeout=60):
                console.emit(event)
            done, _ = ray.wait([future], timeout=0)
            if done:
                for event in ray.get(controller.news.remote(0.0), timeout=60):
                    console.emit(event)
                return ray.get(future)
        except ray.exceptions.RayError as error:
            raise RunError(
                "the controller's process died", str(error).strip(), "see logs/controller.log; out of memory is the usual reason"
            ) from error
    return None


def _stop_gently(config: Config, future: Any, controller: Any, console: Console) -> None:
    import ray

    grace = config.trainer.stop_grace_s
    try:
        if grace and ray.get(controller.stop.remote(), timeout=5):
            console.emit(Note(f"stopping: this step is finished and saved first, {grace:.0f} s at most; Ctrl-C again stops at once"))
            _watch(future, controller, console, deadline=time.monotonic() + grace)
    except (ray.exceptions.RayError, RunError, KeyboardInterrupt) as error:
        console.emit(Note(f"stopped without saving ({type(error).__name__})"))


def _clean_up(run_dir: Path) -> None:
    """End Ray, whatever of its processes is left, and the run's shared memory. A second Ctrl-C does not interrupt this."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        ours = psutil.Process(os.getpid()).children(recursive=True)
        import ray

        ray.shutdown()
        _, alive = psutil.wait_procs(ours, timeout=5)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=5)
        from tandem.run.run import shared_memory_prefix

        buckets.cleanup(shared_memory_prefix(run_dir))
    finally:
        signal.signal(signal.SIGINT, previous)
