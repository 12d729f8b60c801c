"""The demo's folder: made once, reused, never half there, and never in place of something else."""

import json

import pytest

from tandem.data.demo import assets
from tandem.data.demo.assets import MARK, VERSION, prepare_demo
from tandem.errors import UserError


@pytest.fixture
def build(monkeypatch):
    """Replace the seconds of drawing and saving by one file; `build.calls` counts."""

    def quick(folder, seed):
        quick.calls += 1
        (folder / "data").mkdir()
        (folder / "data" / "train.parquet").write_text(f"seed {seed}, call {quick.calls}")
        if quick.fails:
            raise quick.fails

    quick.calls, quick.fails = 0, None
    monkeypatch.setattr(assets, "_build", quick)
    return quick


def held(root) -> str:
    return (root / "data" / "train.parquet").read_text()


def test_a_complete_folder_is_reused_and_another_seed_makes_it_anew(tmp_path, build):
    root = tmp_path / "deep" / "demo"
    made = prepare_demo(root, seed=1)
    assert made.train_files == [str(root / "data" / "train.parquet")] and made.model_path == str(root / "model")
    assert prepare_demo(root, seed=1) == made and held(root) == "seed 1, call 1"
    prepare_demo(root, seed=2)
    assert held(root) == "seed 2, call 2"
    assert json.loads((root / MARK).read_text()) == {"version": VERSION, "seed": 2}
    assert [path.name for path in root.parent.iterdir()] == ["demo"]


def test_a_failure_while_building_leaves_nothing_and_keeps_what_was_there(tmp_path, build):
    root = tmp_path / "demo"
    prepare_demo(root, seed=1)
    build.fails = OSError(28, "No space left on device")
    with pytest.raises(UserError, match="No space left on device"):
        prepare_demo(root, seed=2)
    build.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        prepare_demo(root, seed=2)
    assert held(root) == "seed 1, call 1"
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_something_else_is_never_overwritten(tmp_path, build):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for root in (mine, tmp_path / "file"):
        with pytest.raises(UserError, match="is not the demo's folder"):
            prepare_demo(root)
    assert (mine / "thesis.txt").read_text() == "years of work" and build.calls == 0


def test_an_empty_folder_may_be_filled(tmp_path, build):
    (tmp_path / "demo").mkdir()
    prepare_demo(tmp_path / "demo")
    assert held(tmp_path / "demo") == "seed 0, call 1"


def test_the_folder_of_another_process_that_was_faster_stays(tmp_path, build):
    root, slow = tmp_path / "demo", assets._build

    def overtaken(folder, seed):
        assets._build = slow
        prepare_demo(root, seed)
        slow(folder, seed)

    assets._build = overtaken
    prepare_demo(root)
    assert held(root) == "seed 0, call 1" and build.calls == 2
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
