"""TensorBoard: event files in `RUN/tensorboard`; `tensorboard --logdir runs` shows them."""

from collections.abc import Mapping

from tandem.track.trackers.types import TrackedRun

FOLDER = "tensorboard"


class EventFile:
    def __init__(self, run: TrackedRun):
        from torch.utils.tensorboard import SummaryWriter

        # steps after the checkpoint will be done again: TensorBoard then leaves the earlier ones out
        purge_step = None if run.steps_done is None else run.steps_done + 1
        self.writer = SummaryWriter(str(run.folder / FOLDER), purge_step=purge_step)
        if run.steps_done is None:
            self.writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in run.settings.items()), 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, failed: bool) -> None:
        self.writer.close()


start = EventFile
