"""Finding and reading checkpoints: whole ones only, damage by name, settings that fit."""

import json
import random
import shutil
from pathlib import Path

import pytest

from tandem.checkpoint import checkpoints
from tandem.config.checkpointfolder import FORMAT, differences, find_checkpoint, finished_steps, newest_in, read_checkpoint
from tandem.config.load import load
from tandem.config.schema import Config
from tandem.errors import UserError
from tandem.sync.digest import file_digest


def config_of(*overrides: str) -> Config:
    return load("demo", ["device=cpu", *overrides], env={})


def write(run_dir: Path, step: int, *, total_steps: int = 9, config: Config | None = None) -> Path:
    """A checkpoint with two files of shards."""

    def save(folder: Path) -> dict[str, str]:
        (folder / "trainers").mkdir()
        for rank in range(2):
            (folder / "trainers" / f"__{rank}_0.distcp").write_bytes(random.Random(10 * step + rank).randbytes(5000))
        return {f"trainers/__{rank}_0.distcp": file_digest(folder / "trainers" / f"__{rank}_0.distcp") for rank in range(2)}

    run_dir.mkdir(parents=True, exist_ok=True)
    settings = (config or config_of()).model_dump(mode="json")
    state = {"step": step, "total_steps": total_steps, "loader": {}, "algorithm": {}, "config": settings}
    return checkpoints.write(run_dir / "checkpoints" / f"step_{step:06d}", state, save)


def test_auto_is_the_newest_by_number_and_nothing_when_there_is_none(tmp_path: Path) -> None:
    assert find_checkpoint("auto", tmp_path) is None
    for step in (2, 10, 9):
        write(tmp_path, step)
    (tmp_path / "checkpoints" / "step_000011.tmp").mkdir()
    (tmp_path / "checkpoints" / "reference").mkdir()
    found = find_checkpoint("auto", tmp_path)
    assert found and found.step == 10
    assert find_checkpoint("never", tmp_path) is None
    by_run, by_folder = (
        find_checkpoint(str(tmp_path), Path("/nowhere")),
        find_checkpoint(str(tmp_path / "checkpoints" / "step_000002"), tmp_path),
    )
    assert by_run and by_folder and (by_run.step, by_folder.step) == (10, 2)


@pytest.mark.parametrize("given", ["absent", "empty_run"])
def test_a_path_without_a_checkpoint_is_told(given: str, tmp_path: Path) -> None:
    (tmp_path / "empty_run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="no checkpoint"):
        find_checkpoint(str(tmp_path / given), tmp_path)


def test_fifty_damages_are_fifty_refusals_that_name_the_file(tmp_path: Path) -> None:
    """Bit flips, cuts and losses of any file; what sizes do not show is found by comparing bytes, as ranks do before they load."""
    whole = write(tmp_path / "whole", 3)
    names = sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file())
    draw = random.Random(0)
    for number in range(50):
        path = tmp_path / str(number) / "checkpoints" / "step_000003"
        shutil.copytree(whole, path)
        file = path / (name := names[number % len(names)])
        content = bytearray(file.read_bytes())
        kind = draw.choice(["flip", "cut", "lose"])
        if kind == "flip":
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content[: draw.randrange(len(content))] if kind == "cut" else content)
        if kind == "lose":
            file.unlink()
        with pytest.raises(UserError) as told:
            found = read_checkpoint(path)
            for listed, digest in found.digests.items():
                if file_digest(path / listed) != digest:
                    raise UserError(f"the checkpoint is damaged: {path / listed}", "", "")
        blamed = str(told.value)
        assert name in blamed or (name == "manifest.json" and str(path) in blamed), f"{kind} of {name}: {blamed}"


def test_a_manifest_cannot_point_outside_the_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../../secret"] = {"bytes": 0, "blake3": ""}
    (tmp_path / "secret").touch()
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="outside the checkpoint"):
        read_checkpoint(path)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1, "1", None])
def test_a_checkpoint_of_an_older_or_newer_format_is_refused_and_not_called_damaged(other, tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": other}))
    with pytest.raises(UserError, match=f"of another format: {other}") as told:
        find_checkpoint("auto", tmp_path)
    assert f"reads format {FORMAT}" in told.value.why and "version of Tandem that wrote it" in told.value.fix


def test_a_save_that_ends_at_any_file_operation_leaves_the_one_before_or_a_whole_new_one(tmp_path: Path, monkeypatch) -> None:
    import os

    class Killed(BaseException):
        pass

    def ending_after(count: int):
        left = [count]

        def guard(module, name):
            real = getattr(module, name)

            def call(*args, **kwargs):
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return real(*args, **kwargs)

            return call

        return guard

    for count in range(200):
        run_dir = tmp_path / str(count)
        before = write(run_dir, 1)
        kept = {path.name: path.read_bytes() for path in before.rglob("*") if path.is_file()}
        with monkeypatch.context() as broken:
            guard = ending_after(count)
            for module, name in (
                *((os, name) for name in ("open", "fsync", "replace")),
                *((Path, name) for name in ("mkdir", "write_bytes", "write_text", "stat")),
                (shutil, "rmtree"),
            ):
                broken.setattr(module, name, guard(module, name))
            try:
                write(run_dir, 1 if count % 2 else 2)  # the same step again, or the next
                is_done = True
            except Killed:
                is_done = False
        checkpoints.remove_leftovers(run_dir)
        found = find_checkpoint("auto", run_dir)
        assert found and all(file_digest(found.path / name) == digest for name, digest in found.digests.items())
        assert {path.name: path.read_bytes() for path in before.rglob("*") if path.is_file()} == kept, "the same step has the same bytes"
        assert sorted(path.name for path in (run_dir / "checkpoints").iterdir() if not path.name.startswith("step_00000")) == []
        if is_done:
            break
    assert is_done and count > 20, "every operation was interrupted once"


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ({"keep_last": 0, "keep_every": 0, "best": None}, [1, 2, 3, 4, 5, 6, 7]),
        ({"keep_last": 2, "keep_every": 0, "best": None}, [6, 7]),
        ({"keep_last": 1, "keep_every": 3, "best": None}, [3, 6, 7]),
        ({"keep_last": 1, "keep_every": 0, "best": 2}, [2, 7]),
    ],
)
def test_which_checkpoints_stay(keep: dict, left: list[int], tmp_path: Path) -> None:
    for step in range(1, 8):
        write(tmp_path, step)
    checkpoints.prune(tmp_path, **keep)
    assert sorted(int(path.name.removeprefix("step_")) for path in (tmp_path / "checkpoints").iterdir()) == left


def test_settings_that_would_not_fit_are_refused_and_others_told(tmp_path: Path) -> None:
    saved = config_of("optimizer.lr=1e-3").model_dump(mode="json")
    saved = {"config": saved}
    assert differences(saved, config_of("optimizer.lr=1e-3", "trainer.total_steps=99", "sync.canary_tokens=0", "device=auto")) == []
    assert differences(saved, config_of("optimizer.lr=2e-3", "parallel.tp=2")) == [("parallel.tp", 1, 2), ("optimizer.lr", 1e-3, 2e-3)]
    for change in ("trainer.seed=5", "model.dtype=bfloat16", "data.max_prompt_length=100", "warm_start.max_steps=1"):
        with pytest.raises(UserError, match=change.split("=")[0]):
            differences(saved, config_of("optimizer.lr=1e-3", change))


def test_a_run_is_finished_when_its_steps_are_done_and_its_policy_exported(tmp_path: Path) -> None:
    now = config_of(f"run_dir={tmp_path}", "resume=auto", "trainer.total_steps=4")
    write(tmp_path, 4, total_steps=4, config=now)
    assert finished_steps(now) == 0, "the export is missing"
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "config.json").touch()
    (tmp_path / "export.json").write_text('{"step": 3}')
    assert finished_steps(now) == 0, "it was killed before it exported the last step"
    (tmp_path / "export.json").write_text('{"step": 4}')
    assert finished_steps(now) == 4
    assert finished_steps(now.model_copy(update={"trainer": now.trainer.model_copy(update={"total_steps": 5})})) == 0
    by_epochs = config_of(f"run_dir={tmp_path}", "resume=auto", "trainer.total_steps=0", "trainer.total_epochs=2")
    write(tmp_path, 6, total_steps=6, config=by_epochs)
    (tmp_path / "export.json").write_text('{"step": 6}')
    assert finished_steps(by_epochs) == 6
    assert newest_in(tmp_path) == tmp_path / "checkpoints" / "step_000006"


def test_the_best_checkpoint_is_among_those_that_were_saved(tmp_path: Path) -> None:
    from tandem.run.tracker import Tracker

    track = Tracker(tmp_path)
    track.rows = [
        {"step": 2, "val/accuracy": 0.5},
        {"step": 3, "val/accuracy": 0.9},
        {"step": 4, "val/accuracy": 0.4},
        {"step": 4, "lr": 1.0},
    ]
    assert track.best_step([2, 4, 6]) == 2
    assert track.best_step([3, 4]) == 3
    assert track.best_step([6]) is None


def test_what_else_lies_in_the_folder_is_left_alone_and_is_no_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 2)
    folder = tmp_path / "checkpoints"
    others = ["backup.old", "mine.tmp", "step_1", "step_²", "step_000009.txt"]
    for name in others:
        (folder / name).mkdir()
    (folder / "step_000009").touch()
    for name in ("step_000003.tmp", "reference.tmp", "step_000001.old"):
        (folder / name).mkdir()
    checkpoints.remove_leftovers(tmp_path)
    checkpoints.prune(tmp_path, keep_last=1, keep_every=0, best=None)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*others, "step_000002", "step_000009"])
    assert newest_in(tmp_path) == folder / "step_000002"
    with pytest.raises(UserError, match="resume is empty"):
        find_checkpoint("", tmp_path)


def test_going_back_sets_later_checkpoints_aside_where_nothing_takes_or_removes_them(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    assert checkpoints.set_aside(tmp_path, after=1) == [2, 3]
    write(tmp_path, 2)
    checkpoints.prune(tmp_path, keep_last=1, keep_every=0, best=None)
    checkpoints.remove_leftovers(tmp_path)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step_000002", "step_000002.aside", "step_000003.aside"]


def test_a_batch_made_ahead_fixes_what_it_was_made_by(tmp_path: Path) -> None:
    saved = {"config": config_of().model_dump(mode="json"), "ahead": {"rows": []}}
    for change in ("algorithm.advantage=remax", "rollout.max_staleness=1", "rollout.n=4", "data.train_batch_size=16"):
        with pytest.raises(UserError, match=change.split("=")[0]):
            differences(saved, config_of(change))
        assert differences(saved | {"ahead": None}, config_of(change))
