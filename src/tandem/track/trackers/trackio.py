"""Trackio: a local data base that `trackio show` draws (TRACKIO_DIR says where)."""

from collections.abc import Mapping

from tandem.track.trackers.types import TrackedRun


class TrackioRun:
    def __init__(self, run: TrackedRun):
        import trackio

        self.run = trackio.init(
            project=run.project,
            name=f"{run.name}-{run.id}",  # it knows runs by their names
            config=dict(run.settings),
            resume="allow",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self, failed: bool) -> None:
        self.run.finish()


start = TrackioRun
