"""Weights & Biases. `wandb login`, or WANDB_API_KEY; WANDB_MODE=offline keeps everything in `RUN/wandb`."""

from collections.abc import Mapping

from tandem.track.trackers.types import TrackedRun


class WandbRun:
    def __init__(self, run: TrackedRun):
        import wandb

        self.run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
            settings=wandb.Settings(console="off", silent=True),
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")  # its own count only grows: it would drop steps that are done again

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log({**metrics, "step": step})

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


start = WandbRun
