"""SwanLab. `swanlab login`, or SWANLAB_API_KEY; SWANLAB_MODE=offline keeps everything in `RUN/swanlog`."""

from collections.abc import Mapping

from tandem.track.trackers.types import TrackedRun


class SwanlabRun:
    def __init__(self, run: TrackedRun):
        import swanlab

        self.run = swanlab.init(
            project=run.project,
            experiment_name=run.name,
            id=run.id,
            resume="allow",
            logdir=str(run.folder / "swanlog"),
            config=dict(run.settings),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self, failed: bool) -> None:
        self.run.finish()


start = SwanlabRun
