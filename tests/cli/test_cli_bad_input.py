"""Bad input to the real command: within ten seconds one message with what, why and how to fix, exit code 2, no traceback, nothing left."""

import json
import re
import socket
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tandem.data.columns import IMAGES, MESSAGES, REWARD_MODEL
from tests.cli.commands import tandem

SCHEMA = pa.schema([("data_source", pa.string()), ("prompt", MESSAGES), ("images", IMAGES), ("reward_model", REWARD_MODEL)])


def png() -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (32, 32), "white").save(buffer, "PNG")
    return buffer.getvalue()


def row(image: bytes) -> dict:
    message = {"role": "user", "content": "<image>Which digit is this?"}
    return {
        "data_source": "test",
        "prompt": [message],
        "images": [{"bytes": image, "path": None}],
        "reward_model": {"style": "rule", "ground_truth": "7"},
    }


def parquet(path: Path, rows: list[dict], schema: pa.Schema = SCHEMA) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return path


def refused(tmp_path: Path, *arguments: str, command: str = "train") -> str:
    """The one message of a refused command."""
    ended = tandem(command, *arguments, cwd=tmp_path)
    assert ended.code == 2, ended
    assert ended.seconds < 10
    assert "Traceback" not in ended.err + ended.out
    assert ended.err.startswith("tandem: ")
    assert ended.err.count("tandem: ") == ended.err.count("\n  why: ") == ended.err.count("\n  fix: ") == 1
    assert ended.out == ""
    assert not (tmp_path / "runs").exists()
    log = tmp_path / "cache" / "tandem" / "error.log"
    assert re.search("UserError|BadRow", log.read_text())  # where the traceback went
    return ended.err


def test_unknown_recipe(tmp_path: Path) -> None:
    assert "did you mean `demo`" in refused(tmp_path, "demmo")


def test_unknown_key(tmp_path: Path) -> None:
    assert "did you mean `trainer.total_steps`" in refused(tmp_path, "demo", "trainer.total_stepz=2")
    (tmp_path / "mine.yaml").write_text("base: demo\ntrainer:\n  steps: 3\n")
    assert "mine.yaml:3" in refused(tmp_path, "mine.yaml")


def test_a_rule_between_settings(tmp_path: Path) -> None:
    assert "rollout.n=2" in refused(tmp_path, "demo", "rollout.n=1")


def test_missing_model_folder(tmp_path: Path) -> None:
    assert "no model at /nowhere/model" in refused(tmp_path, "demo", "model.path=/nowhere/model")


def test_folder_without_config_json(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert "no config.json in model" in refused(tmp_path, "demo", "model.path=model")


def test_a_model_that_is_not_qwen3_5(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert "model_type is 'llama'" in refused(tmp_path, "demo", "model.path=model")


def test_empty_parquet(tmp_path: Path) -> None:
    path = parquet(tmp_path / "empty.parquet", [])
    assert "empty.parquet is empty" in refused(tmp_path, "demo", f"data.train_files={path}")


def test_missing_column(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row(png()).items() if name != "reward_model"}]
    path = parquet(tmp_path / "bare.parquet", rows, SCHEMA.remove(3))
    assert "column 'reward_model' is missing" in refused(tmp_path, "demo", f"data.train_files={path}")


def test_broken_image(tmp_path: Path) -> None:
    good = png()
    path = parquet(tmp_path / "broken.parquet", [row(good), row(good[: len(good) // 2])])
    said = refused(tmp_path, "demo", f"data.val_files={path}")
    assert "broken.parquet: row 1" in said


def test_missing_data_file_for_each_command(tmp_path: Path) -> None:
    for command in ("train", "sft", "eval"):
        assert "gone.parquet does not exist" in refused(tmp_path, "demo", "data.val_files=gone.parquet", command=command)


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("key", ["cluster.master_port", "cluster.dashboard_port"])
def test_port_in_use(key: str, busy_port: int, tmp_path: Path) -> None:
    said = refused(tmp_path, "demo", f"{key}={busy_port}")
    assert f"port {busy_port} is in use" in said
    assert f"{key}=0" in said


def test_too_little_shared_memory(tmp_path: Path) -> None:
    said = refused(tmp_path, "demo", f"cluster.object_store_bytes={1 << 50}")
    assert "1048576.02 GiB" in said
    assert "--shm-size" in said


def test_a_folder_with_another_run(tmp_path: Path) -> None:
    resolved = tandem("train", "demo", "--dry-run", cwd=tmp_path).out
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").write_text(resolved)
    (tmp_path / "old" / "metrics.jsonl").write_text("{}\n")
    assert "already holds a run" in refused(tmp_path, "demo", "run_dir=old", "trainer.seed=5")


def test_wrong_use_of_the_command_itself(tmp_path: Path) -> None:
    for arguments in (["train"], ["train", "demo", "--frobnicate"], ["frobnicate"], []):
        ended = tandem(*arguments, cwd=tmp_path)
        assert ended.code == 2
        assert "Usage: " in ended.err + ended.out
        assert "Traceback" not in ended.err


def test_an_evaluation_whose_generator_would_cut_heads_unevenly_is_refused_before_a_cluster_starts(tmp_path: Path) -> None:
    """vLLM would say so, once Ray has started and the model is being loaded; only training runs make a plan."""
    ended = tandem("eval", "demo", "device=cpu", "rollout.placement=split", "rollout.tp=3", f"run_dir={tmp_path / 'run'}", cwd=tmp_path)
    assert ended.code == 2 and "rollout.tp = 3 does not divide the model's num_attention_heads = 4" in ended.err
