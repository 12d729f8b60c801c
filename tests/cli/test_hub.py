"""Runs that need the hub end before anything heavy starts, with what to do."""

from pathlib import Path

import pytest

from tests.cli.commands import tandem
from tests.data.fake_hub import Hub, serve

CONFIG = """{"model_type": "qwen3_5_moe", "image_token_id": 5, "video_token_id": 6, "vision_config": {"num_heads": 4},
 "text_config": {"num_key_value_heads": 2, "num_attention_heads": 16, "num_hidden_layers": 40, "num_experts": 256}}"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A hub with the model org/name; the commands have an empty home."""
    with serve(Hub({"config.json": CONFIG.encode()}), "org/name") as hub:
        for name, text in {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HOME": str(tmp_path),
        }.items():
            monkeypatch.setenv(name, text)
        yield hub


def refused(*arguments: str, cwd: Path) -> str:
    ended = tandem("train", *arguments, cwd=cwd)
    assert ended.code == 2, ended
    assert ended.err.count("\n  fix: ") == 1
    assert "Traceback" not in ended.err
    return ended.err


def test_a_gated_model_and_a_missing_one(hub: Hub, tmp_path: Path) -> None:
    hub.gated = True
    said = refused("demo", "model.path=org/name", cwd=tmp_path)
    assert "model org/name is gated" in said
    assert "https://huggingface.co/org/name" in said
    assert "there is no model org/other" in refused("demo", "model.path=org/other", cwd=tmp_path)


def test_a_layout_the_model_cannot_have_is_refused_before_its_weights_are_fetched(hub: Hub, tmp_path: Path) -> None:
    said = refused("demo", "model.path=org/name", "parallel.pp=3", "trainer.devices_per_node=3", "warm_start.batch_size=63", cwd=tmp_path)
    assert "num_hidden_layers = 40" in said
    assert [request.split("/")[-1] for request in hub.requests if "resolve" in request] == ["config.json"] * 2


def test_a_recipe_fetches_its_data_and_says_so(hub: Hub, tmp_path: Path) -> None:
    said = refused("qwen3_5_35b_a3b", "device=cpu", "prepare=geo3k", "data.train_files=~/data/geo3k/train.parquet", cwd=tmp_path)
    assert f"no train.parquet in {tmp_path}/data/geo3k: fetching Geo3K from tyzhu/geo3k" in said
    assert "there is no data set tyzhu/geo3k" in said
    assert "elsewhere/train.parquet does not exist" in refused(
        "qwen3_5_35b_a3b", "device=cpu", "prepare=geo3k", "data.train_files=elsewhere/train.parquet", "model.path=org/name", cwd=tmp_path
    )
