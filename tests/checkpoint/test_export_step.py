"""`tandem export`: what it writes from a checkpoint of any layout is what the run itself would have exported; bad input is told first."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from tandem.checkpoint import checkpoints, export_step
from tandem.checkpoint.export_step import export_checkpoint as export
from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each
from tandem.errors import UserError
from tests.cli.commands import tandem
from tests.engine.ranks import config_for
from tests.examples import rewrite_weights, tensors_outside_the_model

CASES = {  # layout of the run, its dtype
    "tp2_pp2_ep2": ({"tp": 2, "pp": 2, "ep": 2}, 4, "float32"),
    "pp2_vpp2_bf16": ({"pp": 2, "vpp": 2}, 2, "bfloat16"),
}


def phase(what: str) -> nullcontext:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def source(tiny_model, tmp_path_factory) -> Path:
    """In two files, with fused experts, fp32 and bf16 layers, a card, and tensors outside the model."""
    root = tmp_path_factory.mktemp("source")
    model = rewrite_weights(tiny_model, root / "model", num_files=2, fused=(1,), bfloat16=(2,), extra=tensors_outside_the_model())
    (model / "README.md").write_text("of the start model\n")
    return model


@pytest.fixture(scope="module")
def runs(source, sequences, tmp_path_factory) -> dict[str, Path]:
    """Of each case the folder of a run: a checkpoint of step 2, and as `export` what the run exported."""
    root, calls = tmp_path_factory.mktemp("runs"), []
    for case, (sizes, world_size, dtype) in CASES.items():
        (root / case).mkdir()
        checkpoints.begin(root / case / "checkpoints" / "step_000002")
        trainers = checkpoints.beside(root / case / "checkpoints" / "step_000002") / "trainers"
        trainers.mkdir()
        call = {"model_path": str(source), "sequences": sequences, "folder": str(trainers), "target": str(root / case / "export")}
        call["model"] = {"dtype": dtype}
        calls.append(("tests.engine.export_ranks:train_save_and_export", ParallelConfig(**sizes), world_size, call))
    for (case, (sizes, _, dtype)), shares in zip(CASES.items(), fork_each(calls)):
        settings = config_for(ParallelConfig(**sizes), model={"path": str(source), "dtype": dtype}).model_dump(mode="json")
        state = {"step": 2, "total_steps": 9, "loader": {}, "algorithm": {}, "config": settings, "versions": {"tandem": "0"}}
        digests = {f"trainers/{name}": digest for share in shares for name, digest in share.items()}
        checkpoints.complete(root / case / "checkpoints" / "step_000002", state, lambda digests=digests: digests)
        (root / case / "metrics.jsonl").write_text('{"step": 2, "reward/mean": 0.25}\n{"step": 3, "reward/mean": 0.75}\n')
    return {case: root / case for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_an_export_of_a_checkpoint_has_the_bytes_of_the_runs_own(case, runs, source, tmp_path):
    done = export(str(runs[case]), tmp_path / "out", phase)
    assert done.step == 2
    files = {path.name for path in (runs[case] / "export").iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files | {"README.start-model.md"}
    for name in files - {"README.md"}:
        assert (tmp_path / "out" / name).read_bytes() == (runs[case] / "export" / name).read_bytes(), name
    before, after = (load_file(min(folder.glob("*.safetensors"))) for folder in (source, tmp_path / "out"))
    assert any(not torch.equal(before[name], after[name]) for name in before), "something was learned"
    assert (tmp_path / "out" / "README.start-model.md").read_text() == "of the start model\n"


def test_weights_converted_to_another_dtype_open_in_transformers_without_anything_missing(runs, tmp_path):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    run = runs["tp2_pp2_ep2"]
    export(f"{run}/2", tmp_path / "out", phase, dtype="bfloat16")
    fused = "model.language_model.layers.1.mlp.experts.down_proj"
    kept = {"mtp.norm.weight": torch.float32, "value_head.counts": torch.int8}
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = {path.name: load_file(path) for path in (tmp_path / "out").glob("*.safetensors")}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensors in files.values() for tensor in tensors.values())
    for name, file in index["weight_map"].items():
        trained, now = load_file(run / "export" / file)[name], files[file][name]
        stays = name.endswith(("A_log", "linear_attn.norm.weight")) and trained.dtype == torch.float32
        assert now.dtype == kept.get(name, torch.float32 if stays else torch.bfloat16), name
        assert torch.equal(now, trained.to(now.dtype)), name
    assert fused in index["weight_map"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == "bfloat16"
    _, told = AutoModelForImageTextToText.from_pretrained(tmp_path / "out", dtype=torch.float32, output_loading_info=True)
    assert not told["missing_keys"] and not told["mismatched_keys"]
    AutoProcessor.from_pretrained(tmp_path / "out")


def test_the_card_tells_the_runs_facts_up_to_its_step_and_no_paths(runs, source, tmp_path):
    export(str(runs["tp2_pp2_ep2"] / "checkpoints" / "step_000002"), tmp_path / "out", phase)
    card = (tmp_path / "out" / "README.md").read_text()
    for fact in ("| steps | 2 of 9 |", "| reward/mean | 0.25 |", "tp 2, pp 2", "advantage grpo", 'base_model: "model"'):
        assert fact in card
    assert str(source.parent) not in card and "0.75" not in card


def test_what_cannot_be_exported_is_told_before_anything_is_written(runs, tmp_path, monkeypatch):
    run = shutil.copytree(runs["tp2_pp2_ep2"], tmp_path / "run")
    out = tmp_path / "out"
    for name, told in {
        str(tmp_path / "nothing"): "no run at",
        str(run / "3"): r"no checkpoint 3 in .*\n  why: it has those of steps 2",
        str(run / "latest"): "no checkpoint latest",
    }.items():
        with pytest.raises(UserError, match=told):
            export(name, out, phase)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="not empty"):
        export(str(run), tmp_path / "full", phase)
    with pytest.raises(UserError, match="no model at"):
        export(str(run), out, phase, model=str(tmp_path / "gone"))
    with monkeypatch.context() as patch:
        patch.setattr(export_step.shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000))
        with pytest.raises(UserError, match="not enough room"):
            export(str(run), out, phase)
    shard = min((run / "checkpoints" / "step_000002" / "trainers").glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=f"damaged: {shard}"):
        export(str(run), out, phase)
    shard.unlink()
    with pytest.raises(UserError, match=f"damaged: {shard}\n  why: it is missing"):
        export(str(run), out, phase)
    assert not list(tmp_path.glob("out*"))


def test_the_command_says_what_it_wrote_and_ends_with_2_for_bad_input(runs, tmp_path):
    done = tandem("export", str(runs["pp2_vpp2_bf16"]), "--out", "out", "--json", cwd=tmp_path, timeout=120)
    assert done.code == 0, done.err
    assert json.loads(done.out)["step"] == 2
    again = tandem("export", str(runs["pp2_vpp2_bf16"]), "--out", "out", cwd=tmp_path)
    assert (again.code, again.out) == (2, "") and "not empty" in again.err and "Traceback" not in again.err
