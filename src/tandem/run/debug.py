"""Half of a step at a time: rollouts without training. The other half is `loop.train` on what was recorded (`replay.py`)."""

from tandem.config.checks import has_critic
from tandem.run.collect import collect
from tandem.run.loop import add_advantages
from tandem.run.metrics import Stopwatch, sample_metrics, throughput
from tandem.run.run import Run


def rollout_only(run: Run) -> None:
    """Sample and grade the prompts of `trainer.total_steps` steps by the model as it stands, and record them."""
    run.version = 0  # as the generators read it from the folder
    for step in range(1, run.total_steps + 1):
        clock = Stopwatch(run.track)
        samples, metrics = collect(run, step, clock)
        if not has_critic(run.config):  # it lives beside a trainer
            add_advantages(run, samples)
        run.record(step, samples)
        run.track.step({"step": step, "version": run.version, **sample_metrics(samples), **metrics, **throughput(samples, clock)})
        if run.stop_requested:
            break
