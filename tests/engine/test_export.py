"""An export that is not whole is noticed before it gets its name. Each fault is one that a disk or a rank could make."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem.checkpoint.export import export
from tandem.engine.export import Piece, write_share
from tandem.errors import RunError, UserError
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tests.examples import rewrite_weights, tensors_outside_the_model
from tests.memory import peak_growth

MIB = 1 << 20
FUSED, EXPERT = "model.language_model.layers.1.mlp.experts.gate_up_proj", "model.language_model.layers.1.mlp.experts.3.up_proj.weight"
NORM = "model.language_model.norm.weight"


class Publisher:
    """What `write_share` sees of an engine: publishes what a folder holds, changed or not."""

    def __init__(self, source: Path, change: Callable[[Tensor], Tensor] = lambda tensor: tensor, without: str = ""):
        self.folder, self.change, self.without = HuggingFaceFolder(source), change, without
        self.hf_config = SimpleNamespace(tie_word_embeddings=False)
        self.num_tensors = len(self.folder.names() - {without})
        self.progress = lambda done, total: self.told.append((done, total))
        self.told: list[tuple[int, int]] = []

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name in sorted(self.folder.names() - {self.without}):
            yield name, self.change(self.folder.get(name))


class Trainers:
    """One rank after another in this process; `fault` may spoil what they wrote or said."""

    def __init__(self, *ranks: Publisher, fault: Callable[[Path, list[Piece]], None] = lambda target, pieces: None):
        self.ranks, self.fault = ranks, fault

    def export(self, source: str, target: str) -> list[Piece]:
        pieces = [piece for rank in self.ranks for piece in write_share(rank, Path(source), Path(target))]
        self.fault(Path(target), pieces)
        return pieces


@pytest.fixture(scope="module")
def source(tiny_model, tmp_path_factory) -> Path:
    root, outside = tmp_path_factory.mktemp("source"), tensors_outside_the_model()
    return rewrite_weights(tiny_model, root / "model", num_files=2, fused=(1,), bfloat16=(2,), extra=outside)


def piece_of(pieces: list[Piece], name: str) -> Piece:
    return next(piece for piece in pieces if piece.name == name)


def flip_bit(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def damage(name: str) -> Callable[[Path, list[Piece]], None]:
    def fault(target: Path, pieces: list[Piece]) -> None:
        piece = piece_of(pieces, name)
        flip_bit(target / piece.file, piece.begin + piece.num_bytes - 1)

    return fault


def damage_outside(target: Path, pieces: list[Piece]) -> None:
    for path in target.glob("*.safetensors"):
        stored = HuggingFaceFolder(target).headers[path.name].tensors.get("mtp.norm.weight")
        if stored:
            flip_bit(path, stored.begin)


def damage_header(target: Path, pieces: list[Piece]) -> None:
    path = min(target.glob("*.safetensors"))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"a test", b"a fake", 1))


def damage_index(target: Path, pieces: list[Piece]) -> None:
    path = target / "model.safetensors.index.json"
    path.write_text(json.dumps(json.loads(path.read_text())))


def cut_off(target: Path, pieces: list[Piece]) -> None:
    path = min(target.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])


FAULTS = {  # what happens after the ranks have written, what is told
    "a bit turned": (damage(NORM), f"{NORM} in .* is damaged"),
    "a bit of one expert turned": (damage(EXPERT), f"{EXPERT} in .* is damaged"),
    "a bit of an untouched tensor turned": (damage_outside, "mtp.norm.weight in .* is damaged"),
    "a tensor lost": (lambda _, pieces: pieces.remove(piece_of(pieces, NORM)), f"{NORM} in .* was not written"),
    "half a fused tensor lost": (lambda _, pieces: pieces.remove(piece_of(pieces, EXPERT)), f"{FUSED} in .* was not written, or not all"),
    "a tensor doubled": (lambda _, pieces: pieces.append(piece_of(pieces, NORM)), f"{NORM} in .* was written twice"),
    "a file nobody knows": (
        lambda _, pieces: pieces.append(Piece("ghost", "x.safetensors", 0, 1, "")),
        "ghost was written to x.safetensors",
    ),
    "a tensor behind the end": (lambda _, pieces: pieces.append(Piece("ghost", pieces[0].file, 1 << 40, 4, "")), "ghost was written"),
    "another header": (damage_header, "names, shapes, dtypes or metadata"),
    "another index": (damage_index, "index.json is not the start model's"),
    "a file cut off": (cut_off, "cannot be read"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_spoiled_export_is_noticed_and_gets_no_name(name, source, tmp_path):
    fault, told = FAULTS[name]
    with pytest.raises(RunError, match=told):
        export(Trainers(Publisher(source), fault=fault), source, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_a_rank_that_leaves_an_expert_out_and_two_ranks_with_the_same_one_are_noticed(source, tmp_path):
    with pytest.raises(RunError, match=f"{FUSED} in .* was not written"):
        export(Trainers(Publisher(source, without=EXPERT)), source, tmp_path / "export")
    with pytest.raises(RunError, match="was written twice"):
        export(Trainers(Publisher(source), Publisher(source)), source, tmp_path / "export")


def test_trained_values_arrive_in_the_sources_dtypes_and_the_rest_is_untouched(source, tmp_path):
    target = tmp_path / "export"
    for scale in (2, 3):  # the second replaces the first
        export(Trainers(Publisher(source, change=lambda tensor, scale=scale: tensor.double() * scale)), source, target)
    outside = set(tensors_outside_the_model())
    for file in source.glob("*.safetensors"):
        before, after = load_file(file), load_file(target / file.name)
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            expected = tensor if name in outside else (tensor.double() * 3).to(tensor.dtype)
            assert after[name].dtype == tensor.dtype and torch.equal(after[name], expected), name


def test_weights_that_bf16_training_did_not_move_are_exported_exactly_and_the_others_as_trained(tiny_model, tmp_path):
    before = load_file(tiny_model / "model.safetensors")
    for scale in (1, 2):
        export(Trainers(Publisher(tiny_model, change=lambda x, scale=scale: x.bfloat16() * scale)), tiny_model, tmp_path / "export")
        after = load_file(tmp_path / "export" / "model.safetensors")
        for name, tensor in before.items():
            right = tensor if scale == 1 or not tensor.any() else (tensor.bfloat16() * scale).float()
            assert torch.equal(after[name], right), name


def test_a_folder_of_links_as_the_hubs_cache_has_it_becomes_one_of_files(source, tmp_path):
    links = tmp_path / "links"
    links.mkdir()
    for path in source.iterdir():
        (links / path.name).symlink_to(path)
    export(Trainers(Publisher(links)), links, tmp_path / "export")
    for path in source.iterdir():
        copy = tmp_path / "export" / path.name
        assert not copy.is_symlink() and copy.read_bytes() == path.read_bytes(), path.name


def test_other_forms_of_the_start_models_weights_are_left_out_and_named(source, tmp_path, caplog):
    model = shutil.copytree(source, tmp_path / "model")
    stale = ["consolidated.00.pth", "model.gguf", "other.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json"]
    for name in stale:
        (model / name).write_bytes(b"old")
    with caplog.at_level(logging.INFO):
        export(Trainers(Publisher(model)), model, tmp_path / "export")
    assert {path.name for path in (tmp_path / "export").iterdir()} == {path.name for path in source.iterdir()}
    [told] = [record.message for record in caplog.records if "not exported" in record.message]
    assert told.endswith(": " + ", ".join(stale))


def test_how_many_tensors_are_only_carried_is_logged(source, caplog):
    folder = HuggingFaceFolder(source)
    with caplog.at_level(logging.INFO):
        folder.check_names(folder.names())
    assert [record.message[:29] for record in caplog.records] == ["4 tensors outside the model, "]


def test_a_rank_that_sees_another_disk_says_so(source, tmp_path):
    with pytest.raises(UserError, match=r"does not see .*safetensors"):
        write_share(Publisher(source), source, tmp_path)


def test_a_rank_holds_one_tensor_at_a_time(tmp_path):
    (tmp_path / "model").mkdir()
    tensors = {f"model.{i}.weight": torch.zeros(32 * MIB // 4) for i in range(8)}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    del tensors
    publisher = Publisher(tmp_path / "model", change=lambda tensor: torch.ones_like(tensor))
    trainers = Trainers(publisher)
    growth = peak_growth(lambda: export(trainers, tmp_path / "model", tmp_path / "export"))
    assert growth <= 160 * MIB, f"{growth / MIB:.0f} MiB for 8 tensors of 32 MiB"  # one, the one before it, and a buffer of 64 MiB
