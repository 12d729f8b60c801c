"""Traces of chosen steps: torch's profiler in training ranks, and a timeline of Python calls in every process. `trainer.profile` chooses.

A step that is not chosen costs nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandem.actors.traces import Timeline, join_timeline
from tandem.actors.waiting import wait
from tandem.errors import RunError
from tandem.run.run import Run
from tandem.track import profiles


@contextmanager
def profiled(run: Run, step: int) -> Iterator[None]:
    """Write the traces of a step that `trainer.profile.steps` names. When the step fails, nothing is written."""
    settings = run.config.trainer.profile
    if step not in settings.steps:
        yield
        return
    (run.run_dir / profiles.FOLDER).mkdir(exist_ok=True)
    ranks = run.trainers.ranks if hasattr(run, "trainers") else []
    chosen = [rank for number, rank in enumerate(ranks) if not settings.ranks or number in settings.ranks]
    engines = [replica.actor for replica in run.generators.replicas] if settings.timeline and hasattr(run, "generators") else []
    limit = run.config.trainer.timeout_s
    wait(
        [rank.start_profile.remote(settings.timeline) for rank in chosen] + [one.start_profile.remote() for one in engines],
        limit,
        "profiling",
    )
    own = Timeline("controller") if settings.timeline else None
    yield
    parts = [own.write(run.run_dir, step)] if own else []
    with run.track.phase("writing traces"):
        parts += wait([rank.stop_profile.remote(step) for rank in chosen], limit, "writing traces")
        parts += _of_engines(run, engines, step)
        if settings.timeline:
            join_timeline(run.run_dir, step, [Path(part) for part in parts if part])
    run.track.note(f"wrote {len(chosen)} traces of step {step}: `tandem profile {run.run_dir}` shows them")


def _of_engines(run: Run, engines: list[Any], step: int) -> list[str]:
    """One that was replaced during the step has nothing to write."""
    try:
        return wait([one.stop_profile.remote(step) for one in engines], run.config.rollout.health_timeout_s, "writing traces")
    except RunError as error:
        run.track.note(f"the timeline of step {step} is without generators: {error.what}")
        return []
