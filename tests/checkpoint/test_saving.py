"""A checkpoint written beside the loop: one at a time, its failure stops the run, and nothing ends before it is on the disk."""

import threading
from pathlib import Path

import pytest

from tandem.config.checkpointfolder import checkpoints_in, find_checkpoint
from tandem.errors import RunError
from tandem.run import loop
from tandem.run.run import Run
from tandem.sync.digest import file_digest
from tests.run.fake_run import FakeRun

MIXED = [[[1.0, 0.0]]]
SETTINGS = ("algorithm.kl.coef=0", "fidelity.max_logprob_abs_diff_mean=0", "trainer.val_before_train=false", "trainer.save_freq=1")


class SavingRun(FakeRun):
    """Its trainers write one file each time, once `may_write` is set; `fault` is raised instead."""

    save = Run.save

    def __init__(self, tmp_path: Path, num_steps: int, *overrides: str):
        super().__init__(tmp_path, MIXED * num_steps, *SETTINGS, f"trainer.total_steps={num_steps}", *overrides)
        self.may_write, self.fault = threading.Event(), None
        self.trained_loader_state, self.was_exported_with = {}, []
        self.rollouts = type("Rollouts", (), {"pending": None, "close": lambda self: None})()
        self.graders.close = lambda: None
        self.trainers.begin_save = self._begin_save

    def _begin_save(self, folder: Path, critic: bool = False):
        self.trainers.calls.append("copy")

        def written(progress) -> dict[str, str]:
            progress(0, 1)
            assert self.may_write.wait(30)
            if self.fault:
                raise self.fault
            (folder / "__0_0.distcp").write_bytes(b"weights")
            return {"__0_0.distcp": file_digest(folder / "__0_0.distcp")}

        return written

    def start(self) -> int:
        return 0

    def export(self, step=0):
        self.was_exported_with = [path.name for path in checkpoints_in(self.run_dir)]


def test_the_loop_goes_on_and_the_next_save_waits_for_the_one_before(tmp_path):
    run = SavingRun(tmp_path, 2)
    loop.one_step(run, 1)
    run.save(1)
    loop.one_step(run, 2)
    run.settle_save(wait=False)
    assert find_checkpoint("auto", tmp_path) is None, "what is being written is no checkpoint"
    second = threading.Thread(target=run.save, args=(2,))
    second.start()
    second.join(0.3)
    assert second.is_alive() and run.trainers.calls.count("copy") == 1, "two copies of the state would have no room"
    run.may_write.set()
    second.join(30)
    run.settle_save()
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step_000001", "step_000002"]


def test_a_run_ends_and_exports_after_its_last_checkpoint_is_there(tmp_path):
    run = SavingRun(tmp_path, 2, "trainer.keep_last=1")
    threading.Timer(0.3, run.may_write.set).start()
    loop.train(run)
    assert run.was_exported_with == ["step_000002"]


@pytest.mark.parametrize("save_freq", [1, 0])
def test_a_stop_saves_and_leaves_what_takes_longer_to_the_run_that_goes_on(save_freq, tmp_path, monkeypatch):
    """A validation that an uninterrupted run would not have made is a row too many; one that is due is made when it goes on."""
    run = SavingRun(tmp_path, 2, f"trainer.save_freq={save_freq}", "trainer.test_freq=1")
    run.stop_requested = True
    validated = []
    monkeypatch.setattr(loop, "validate", lambda run, step: validated.append(step))
    threading.Timer(0.3, run.may_write.set).start()
    loop.train(run)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step_000001"]
    assert (validated, run.was_exported_with) == ([], [])


def test_a_stop_in_a_validation_does_not_begin_another_step(tmp_path, monkeypatch):
    run = SavingRun(tmp_path, 2, "trainer.save_freq=0", "trainer.test_freq=1")
    run.may_write.set()
    monkeypatch.setattr(loop, "validate", lambda run, step: setattr(run, "stop_requested", True))
    loop.train(run)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step_000001"]


def test_waiting_for_a_checkpoint_tells_how_many_ranks_have_written_theirs(tmp_path):
    run = SavingRun(tmp_path, 2)
    run.save(1)
    threading.Timer(0.7, run.may_write.set).start()
    run.settle_save()
    told = [event for event in run.track.take(0) if getattr(event, "name", "") == "saving"]
    assert (told[-2].done, told[-2].total) == (0, 1) and told[-1].seconds >= 0.5


@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_a_save_that_fails_stops_the_run_with_its_own_message_and_leaves_the_one_before(asynchronous, tmp_path):
    run = SavingRun(tmp_path, 4, f"trainer.async_save={asynchronous}")
    run.may_write.set()
    one_step = loop.one_step

    def full_after_the_first(run, step):
        if step == 2:
            run.settle_save()
            run.fault = RunError("the checkpoint could not be written", "rank 0: No space left on device", "make room")
        return one_step(run, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "one_step", full_after_the_first)
        with pytest.raises(RunError, match="No space left"):
            loop.train(run)
    assert run.trainers.calls.count("update") < 4, "the run did not go on to its end without checkpoints"
    assert find_checkpoint("auto", tmp_path).step == 1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_000001"], "what was half written has gone"


def test_a_run_that_fails_lets_the_save_before_be_completed(tmp_path):
    run = SavingRun(tmp_path, 2)
    run.save(1)
    threading.Timer(0.3, run.may_write.set).start()
    run.close()
    assert find_checkpoint("auto", tmp_path).step == 1


def test_a_folder_that_was_removed_under_the_run_is_told_and_not_made_anew(tmp_path):
    run = SavingRun(tmp_path / "run", 2)
    run.may_write.set()
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"the checkpoint in .*step_000001 could not be written"):
        run.save(1)
    assert not (tmp_path / "run").exists()
