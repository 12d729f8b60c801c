"""Geo3K from copies in both layouts and from a hub on this machine: the same two files, or one message that says what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem.data import geo3k
from tandem.data.geo3k import SCHEMA, SIZES, fetch_missing, split_files, write_geo3k
from tandem.data.rows import INSTRUCTION, read_rows
from tandem.errors import UserError
from tests.data.fake_hub import Hub, serve
from tests.data.files import encoded, picture, write

SMALL = {"train": 5, "validation": 3, "test": 4}


DRAWINGS = [encoded(picture(seed=number)) for number in range(7)]


def problem(number: int) -> dict[str, Any]:
    return {"problem": f"<image>Find x{number}.", "answer": str(number), "images": [{"bytes": DRAWINGS[number % 7], "path": None}]}


def published(folder: Path, sizes: dict[str, int]) -> Path:
    """As hiyouga/geometry3k: data/<split>-00000-of-00001.parquet with problem, answer and images."""
    for split, size in sizes.items():
        write(folder / "data" / f"{split}-00000-of-00001.parquet", [problem(number) for number in range(size)], schema=None)
    return folder


def processed(folder: Path, sizes: dict[str, int]) -> Path:
    """As tyzhu/geo3k: train.parquet and test.parquet with prompts."""
    for split in ("train", "test"):
        records = [
            {
                "data_source": "hiyouga/geometry3k",
                "prompt": [{"role": "user", "content": f"{row['problem']} {INSTRUCTION}"}],
                "images": row["images"],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": row["answer"]},
                "extra_info": {"split": split, "index": number, "answer": row["answer"], "question": row["problem"]},
            }
            for number, row in ((number, problem(number)) for number in range(sizes[split]))
        ]
        write(folder / f"{split}.parquet", records, SCHEMA)
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Geo3K's splits are this small."""
    monkeypatch.setattr(geo3k, "SIZES", SMALL)


def message(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        write_geo3k(*arguments, **options)
    return str(caught.value)


@pytest.mark.usefixtures("small")
def test_both_layouts_give_the_same_rows(tmp_path: Path) -> None:
    sources = [published(tmp_path / "a", SMALL), processed(tmp_path / "b", SMALL)]
    written = [write_geo3k(tmp_path / f"out{number}", str(source)) for number, source in enumerate(sources)]
    assert [list(files.values()) for files in written] == [[5, 4], [5, 4]]
    for first, second in zip(*written):
        assert first.read_bytes() == second.read_bytes()
    row = read_rows([str(tmp_path / "out0" / "train.parquet")])[2]
    assert row.messages == [{"role": "user", "content": f"<image>Find x2. {INSTRUCTION}"}]
    assert (row.ground_truth, row.images, row.data_source) == ("2", [DRAWINGS[2]], "hiyouga/geometry3k")
    assert row.extra_info == {"split": "train", "index": 2, "answer": "2", "question": "<image>Find x2."}
    assert sorted(path.name for path in (tmp_path / "out0").iterdir()) == ["test.parquet", "train.parquet"]


def test_the_instruction_is_the_field_s() -> None:
    assert INSTRUCTION == (
        "You FIRST think about the reasoning process as an internal monologue and then provide the final answer. The reasoning process "
        "MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in \\boxed{}."
    )
    assert SIZES == {"train": 2101, "validation": 300, "test": 601}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_of_another_size_is_refused_and_nothing_is_written(split: str, tmp_path: Path) -> None:
    said = message(tmp_path / "out", str(published(tmp_path / "copy", SMALL | {split: 2})))
    assert f"its {split} split has 2 rows instead of {SMALL[split]}" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("small")
def test_a_folder_without_the_splits_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "copy" / "train.parquet", [problem(0)], schema=None)
    assert "holds no Geo3K" in message(tmp_path / "out", str(tmp_path / "copy"))


@pytest.mark.parametrize("source", ["/no/such", "./copy", "../copy", "copies/of/geo3k", "~/nothing-here"])
def test_a_folder_that_is_not_there_is_no_hub_name(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geo3k, "fetch", lambda *_: pytest.fail("asked the hub for a folder"))
    assert "there is no folder" in message(tmp_path / "out", source)


def test_shards_are_read_in_order(tmp_path: Path) -> None:
    names = [f"train-0000{shard}-of-00003.parquet" for shard in (2, 0, 1)] + ["test.parquet", "training.parquet"]
    for name in names:
        (tmp_path / name).touch()
    assert split_files(tmp_path) == {"train": [tmp_path / name for name in sorted(names[:3])], "test": [tmp_path / "test.parquet"]}


@pytest.mark.usefixtures("small")
def test_only_files_that_are_absent_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = processed(tmp_path / "copy", SMALL)
    monkeypatch.setattr(geo3k, "fetch", lambda name, kind, patterns, offline: source if name == "tyzhu/geo3k" else None)
    monkeypatch.setenv("HOME", str(tmp_path))
    train, test = (str(tmp_path / "data" / "geo3k" / name) for name in ("train.parquet", "test.parquet"))
    other = str(tmp_path / "elsewhere" / "train.parquet")
    write(Path(train), [problem(9)], schema=None)
    said: list[str] = []
    fetch_missing([train, test, other], said.append)
    assert (len(read_rows([train])), len(read_rows([test])), Path(other).exists()) == (1, 4, False)
    assert "fetching Geo3K from tyzhu/geo3k" in said[0]
    assert said[1] == f"{test}: 4 rows"
    fetch_missing([train, test], said.append)
    assert len(said) == 2


def with_hub(tmp_path: Path, hub: Hub, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own beside a hub, with an empty cache."""
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "XDG_CACHE_HOME": str(tmp_path)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=os.environ | env, timeout=60)


def command(tmp_path: Path, hub: Hub, *arguments: str) -> subprocess.CompletedProcess[str]:
    return with_hub(tmp_path, hub, "-m", "tandem", "data", "geo3k", "--out", str(tmp_path / "out"), *arguments)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done
    assert done.stderr.count("\n  fix: ") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_the_command_downloads_once_and_then_works_offline(tmp_path: Path) -> None:
    files = {
        str(path.relative_to(tmp_path / "source")): path.read_bytes() for path in published(tmp_path / "source", SIZES).rglob("*.parquet")
    }
    with serve(Hub({**files, "README.md": b"no"}), "hiyouga/geometry3k") as hub:
        assert "not in the cache" in refused(command(tmp_path, hub, "--source", "hiyouga/geometry3k", "--offline"))
        assert hub.requests == []
        done = command(tmp_path, hub, "--source", "hiyouga/geometry3k")
        assert done.stdout.splitlines() == [f"{tmp_path}/out/train.parquet: 2101 rows", f"{tmp_path}/out/test.parquet: 601 rows"], done
        assert not [request for request in hub.requests if "README" in request]
    assert command(tmp_path, hub, "--source", "hiyouga/geometry3k", "--offline").returncode == 0


def test_a_gated_or_missing_source_ends_with_what_to_do(tmp_path: Path) -> None:
    with serve(Hub({}, gated=True)) as hub:
        said = refused(command(tmp_path, hub))
        assert "data set tyzhu/geo3k is gated" in said
        assert "hf auth login" in said
        assert "there is no data set tyzhu/geo4k" in refused(command(tmp_path, hub, "--source", "tyzhu/geo4k"))
    said = refused(command(tmp_path, hub))  # nothing listens there any more
    assert "the hub is not reachable" in said
    assert "hf download tyzhu/geo3k --repo-type dataset --local-dir DIR" in said


def test_a_cut_connection_goes_on_where_it_was(tmp_path: Path) -> None:
    """The client keeps what it has in pieces of 10 MB."""
    data = os.urandom(1 << 20) * 16
    code = "from tandem.data.hub import fetch; import sys; sys.stdout.write(str(fetch('tyzhu/geo3k', 'dataset', ('*.parquet',))))"
    with serve(Hub({"train.parquet": data}, cut_after=12 << 20)) as hub:
        done = with_hub(tmp_path, hub, "-c", code)
    assert (Path(done.stdout) / "train.parquet").read_bytes() == data, done
    assert [request for request in hub.requests if request.endswith(f"bytes={10 << 20}-")]


def test_a_download_is_counted_in_megabytes_to_its_end(tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 24
    code = (
        "from tandem.data.hub import fetch; import json, sys; told = [];"
        "fetch('tyzhu/geo3k', 'dataset', ('*.parquet',), progress=lambda *both: told.append(both)); first = list(told);"
        "fetch('tyzhu/geo3k', 'dataset', ('*.parquet',), progress=lambda *both: told.append(both));"
        "sys.stdout.write(json.dumps([first, told]))"
    )
    with serve(Hub({"train.parquet": data, "test.parquet": data[: 1 << 20]})) as hub:
        first, both = json.loads(with_hub(tmp_path, hub, "-c", code).stdout)
    total = (25 << 20) // 10**6
    assert first[-1] == [total, total] and first == sorted(first), "it never goes back"
    assert len({done for done, _ in first}) > 2 and {count for _, count in first} == {total}
    assert both == first, "what is there is not fetched again"
