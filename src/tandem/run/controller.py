"""The controller: a Ray actor that makes the run's parts and runs its loop, while the terminal's side asks it for news."""

import logging
import traceback
from pathlib import Path
from typing import Any

from tandem.actors.actor import log_to_file
from tandem.config.checkpointfolder import EXPORTED, find_checkpoint, newest_in
from tandem.config.schema import Config
from tandem.errors import RunError, UserError

log = logging.getLogger(__name__)


class Controller:
    """`run` fills the actor's main thread; the other methods answer beside it (concurrency group `news`)."""

    def __init__(self, config: Config, task: str, run_dir: str):
        from tandem.run.tracker import Tracker

        log_to_file(Path(run_dir) / "logs" / "controller.log")
        self.config, self.task, self.run_dir = config, task, Path(run_dir)
        self.track = Tracker(self.run_dir)
        self._run: Any = None
        self._stop = self._stoppable = False

    def news(self, timeout_s: float) -> list[Any]:
        return self.track.take(timeout_s)

    def advanced(self, done: int, total: int) -> None:
        """Rank 0 is so far with what it was asked last."""
        self.track.advanced_within(done, total)

    def stop(self) -> bool:
        """Ask for a stop after this step, with a checkpoint. False when the run is not at a point where there is anything to save."""
        self._stop = True
        if self._run is not None:
            self._run.stop_requested = True
        return self._stoppable

    def run(self) -> dict[str, Any]:
        """The summary, or {"failure": error, "traceback": text}: the process edge, so that any error reaches the terminal whole."""
        failed = True
        try:
            result = self._run_task()
            failed = False
            return result
        except (UserError, RunError) as error:
            log.exception("the run failed")
            return {"failure": error, "traceback": traceback.format_exc()}
        except OSError as error:  # of a record of the run: checkpoints and exports tell their own
            log.exception("the run failed")
            told = RunError(f"a file could not be read or written: {error}", "its disk is full or read-only, or the folder was removed",
                            "make room, then go on from the last checkpoint: resume=auto")  # fmt: skip
            return {"failure": told, "traceback": traceback.format_exc()}
        except Exception as error:  # process edge
            log.exception("the run failed")
            told = RunError(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}",
                            "this is not one of the failures Tandem knows", "see the traceback in the log")  # fmt: skip
            return {"failure": told, "traceback": traceback.format_exc()}
        finally:
            if self._run is not None:
                self._run.close()
            self.track.close_trackers(failed)

    def _run_task(self) -> dict[str, Any]:
        import ray

        with self.track.phase("loading the libraries"):  # half a minute on a busy machine
            from tandem import devices
            from tandem.report.page import write_report
            from tandem.report.runs import run_folder
            from tandem.run import assemble, debug, evaluate, loop, sft
            from tandem.track.summary import summarize

        config = self.config
        device = devices.DEVICES[config.device]
        me = ray.get_runtime_context().current_actor
        run = self._run = assemble.assemble(config, device, self.task, self.run_dir, self.track, me)
        run.stop_requested = self._stop
        checkpoint = find_checkpoint(config.resume, self.run_dir) if self.task in ("train", "demo") else None
        if self.task in ("train", "demo", "sft", "train-only") and config.warm_start.max_steps and not checkpoint:
            sft.warm_start(run)
        paths: dict[str, str] = {}
        if self.task in ("train", "demo", "train-only"):
            self._stoppable = True
            self.track.open_trackers(config, checkpoint.step if checkpoint else None)
            loop.train(run, checkpoint)
            saved = newest_in(self.run_dir) or (checkpoint.path if checkpoint else None)
            paths["checkpoint"] = str(saved)
        if self.task == "rollout-only":
            self._stoppable = True
            debug.rollout_only(run)
        if self.task == "sft":
            run.export()
        if self.task == "eval":
            return {**evaluate.evaluate(run), "run_dir": str(self.run_dir)}
        if (self.run_dir / EXPORTED).exists():
            paths["export"] = str(self.run_dir / "export")
        paths |= {"report": str(self.run_dir / "report.html")}
        summary = summarize(self.track.rows, self.track.phase_seconds, paths)
        try:
            write_report([run_folder(self.run_dir)], self.run_dir / "report.html")
        except UserError as error:
            raise RunError(error.what, error.why, f"all else is done; make room, then: tandem report {self.run_dir}") from error
        return {**summary, "run_dir": str(self.run_dir), "stopped": run.stop_requested}
