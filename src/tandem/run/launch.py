"""The terminal's side of a run: start the cluster and the controller, show the news, and leave nothing behind however it ends."""

import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tandem import devices
from tandem.actors import remains
from tandem.actors.janitor import Janitor
from tandem.actors.processes import end, has_ended, shared_memory_of
from tandem.algorithms.names import check_names as check_algorithm_names
from tandem.checkpoint.checkpoints import remove_leftovers
from tandem.config.checkpointfolder import differences, find_checkpoint, newest_in
from tandem.config.notes import notes
from tandem.config.schema import Config
from tandem.devices.parts import choose_parts
from tandem.errors import RunError
from tandem.plan.before_run import check_sizes, plan_before_run
from tandem.rewards import check_names as check_grader_names
from tandem.rollout.environment import load_environment
from tandem.run.run_dir import begin, only_run_in, write_plan
from tandem.secrets import without_secrets
from tandem.sync.shared_memory import cleanup, shared_memory_prefix
from tandem.track.console import Console
from tandem.track.events import Note, PhaseEnded, PhaseStarted


class RemoteTraceback(Exception):
    """The traceback of the controller's process, as the cause of what is raised here, so that the log shows both."""


def launch(config: Config, task: str, console: Console) -> dict[str, Any]:
    """Run `task` ("train", "sft", "eval", "demo", "rollout-only" or "train-only") to its end and return the summary.

    Raises:
        UserError, RunError: as the controller met them; the traceback is in logs/error.log.
        KeyboardInterrupt: Ctrl-C or SIGTERM; what could be saved within `trainer.stop_grace_s` is.
    """
    check_names(config)
    device, reason = devices.detect(config.device)
    with only_run_in(Path(config.run_dir)), StopSignals() as stop:
        console.on_reader_gone = stop.count_one
        config, run_dir = begin(config, device.NAME)
        console.emit(Note(f"device {device.NAME}: {reason}"))
        console.emit(Note("; ".join(choose_parts(device, config.model.layers).reasons)))
        if task in ("eval", "rollout-only"):
            check_sizes(config)
        if task in ("train", "demo"):
            if plan := plan_before_run(config, device.memory_bytes(), device.peak_flops(config.model.dtype) or 0.0):
                write_plan(run_dir, plan)
            else:
                console.emit(Note(f"not planned: the sizes of {config.model.path} are known when it has been fetched"))
        for note in notes(config):
            console.emit(Note(note))
        for note in changes(config, task):
            console.emit(Note(note))
        result = _run_to_its_end(config, task, run_dir, device, console, stop)
    if result is None:
        raise KeyboardInterrupt(*[] if console.is_read else ["nobody reads what it says any more"])
    return result


def changes(config: Config, task: str) -> list[str]:
    """Settings that are not those of the checkpoint which the run goes on from, a line each."""
    checkpoint = find_checkpoint(config.resume, Path(config.run_dir)) if task in ("train", "demo") else None
    changed = differences(checkpoint.state, config) if checkpoint else []
    return [f"resumed with another {key}: {old!r} -> {new!r}" for key, old, new in changed]


def _run_to_its_end(config: Config, task: str, run_dir: Path, device, console: Console, stop: "StopSignals") -> dict[str, Any] | None:
    """`_run`, again from the last checkpoint when it fails, `trainer.max_restarts` times at most."""
    restarts = config.trainer.max_restarts if task in ("train", "demo") else 0
    restart = 0
    while True:
        restart += 1
        janitor = Janitor(run_dir)
        remove_leftovers(run_dir)
        remains.remove(run_dir)
        cleanup(shared_memory_prefix(run_dir))
        try:
            return _run(config, task, run_dir, device, console, stop)
        except RunError as error:
            if restart > restarts or stop.count:
                raise
            try:
                (run_dir / "logs" / f"failure_{restart}.log").write_text(without_secrets(traceback.format_exc()), encoding="utf-8")
            except OSError:  # a disk that takes no log takes no checkpoint
                raise error from None
            console.emit(Note(without_secrets(f"restart {restart} of {restarts}: {error.what}")))
            config = config.model_copy(update={"resume": "auto" if newest_in(run_dir) else config.resume})
        finally:
            _clean_up(run_dir)
            janitor.dismiss()


def check_names(config: Config) -> None:
    """Raises UserError for a name that is in none of the tables, before minutes are spent on the way to it."""
    check_algorithm_names(config.algorithm)
    check_grader_names(config.reward.name, config.reward.also)
    if config.rollout.environment:
        load_environment(config.rollout.environment)


class StopSignals:
    """Ctrl-C, SIGTERM and SIGHUP are counted instead of interrupting: an import or a start of Ray cut in the middle could not be undone."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "StopSignals":
        self._previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        self.listen()
        return self

    def listen(self) -> None:
        for number in self._previous:
            signal.signal(number, self.count_one)

    def count_one(self, *_: Any) -> None:
        self.count += 1

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _run(config: Config, task: str, run_dir: Path, device, console: Console, stop: StopSignals) -> dict[str, Any] | None:
    """The summary; None when a signal ended the run."""
    from tandem.actors import cluster

    began = time.monotonic()
    console.emit(PhaseStarted("starting the cluster"))

    from tandem.run.controller import Controller

    joined = cluster.start(config, device)
    stop.listen()  # ray.init installs a handler of its own
    cluster.check_resources(config, device, joined, generators=task in ("train", "demo"))
    controller = cluster.answering_aside(Controller, "news", "stop", "advanced").options(num_cpus=1).remote(config, task, str(run_dir))
    console.emit(PhaseEnded("starting the cluster", time.monotonic() - began))
    future = controller.run.remote()
    result = _watch(future, controller, console, lambda: stop.count > 0)
    if result is None:
        _stop_gently(config, future, controller, console, stop)
        return None
    if "failure" in result:
        raise result["failure"] from RemoteTraceback(result["traceback"])
    return result


def _watch(future: Any, controller: Any, console: Console, until: Callable[[], bool]) -> dict[str, Any] | None:
    """Show the controller's events until its run is over; None when `until` came true first.

    Raises:
        RunError: the controller's process is gone, or one of Ray's own that was started here.
    """
    import ray

    from tandem.actors import cluster

    services = cluster.services()
    while not until():
        if ended := [name for name, process in services if has_ended(process)]:
            if until():
                return None
            raise RunError(
                f"a process of Ray died: {ended[0]}", "nothing can be started or found without it", "out of memory is the usual reason"
            )
        try:
            for event in ray.get(controller.news.remote(0.3), timeout=60):
                console.emit(event)
            done, _ = ray.wait([future], timeout=0)
            if done:
                for event in ray.get(controller.news.remote(0.0), timeout=60):
                    console.emit(event)
                return ray.get(future)
        except ray.exceptions.RayError as error:
            if until():  # a signal to the whole process group reaches Ray too
                return None
            raise RunError(
                "the controller's process died", cluster.cause_of_death(error), "see logs/controller.log; out of memory is the usual reason"
            ) from error
    return None


def _stop_gently(config: Config, future: Any, controller: Any, console: Console, stop: StopSignals) -> None:
    """Let the step that is running be finished and saved, within the grace time and until another signal."""
    import ray

    signals, ends = stop.count, time.monotonic() + config.trainer.stop_grace_s
    try:
        if config.trainer.stop_grace_s and ray.get(controller.stop.remote(), timeout=5):
            console.emit(Note(f"stopping after this step, {config.trainer.stop_grace_s:.0f} s at most; Ctrl-C again stops at once"))
            _watch(future, controller, console, lambda: stop.count > signals or time.monotonic() > ends)
    except (ray.exceptions.RayError, RunError) as error:
        console.emit(Note(f"stopped without saving: {type(error).__name__}"))


def _clean_up(run_dir: Path) -> None:
    """End Ray, whatever is left of its processes, and the shared memory of both."""
    import ray

    ours = psutil.Process(os.getpid()).children(recursive=True)
    theirs = shared_memory_of(ours)
    ray.shutdown()
    end(ours, grace_s=5)
    for path in theirs:
        path.unlink(missing_ok=True)
    remains.remove(run_dir)
    cleanup(shared_memory_prefix(run_dir))
