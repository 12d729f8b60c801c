"""The published models under the guide's layouts: every rank is built, without its weights, and compared with transformers' model."""

import math
import multiprocessing
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from tandem.config.schema import ParallelConfig
from tandem.qwen3_5.rules import Columns, Rule, Whole
from tests.config.test_config_layout import MOE_35B, MOE_122B
from tests.qwen3_5.meta_ranks import Built, build

SIZES = {  # text config, output width of the vision tower
    "35b": (MOE_35B | {"hidden_size": 2048}, 2048),
    "122b": (MOE_122B | {"hidden_size": 3072}, 3072),
}
BILLIONS = {"35b": ("35.1", "34.7"), "122b": ("122.6", "122.1")}  # all parameters; without the vision tower, as the names count
LAYOUTS = {  # model, ranks, layout
    "35b_npu": ("35b", 16, {"tp": 2, "pp": 2, "ep": 8}),
    "35b_gpu": ("35b", 8, {"tp": 2, "ep": 8}),
    "122b_npu": ("122b", 64, {"tp": 2, "pp": 4, "ep": 16}),
    "122b_gpu": ("122b", 32, {"tp": 2, "pp": 2, "ep": 8}),
}
Shapes = dict[str, tuple[int, ...]]

pytestmark = pytest.mark.parallel


def hf_config(size: str):
    from transformers import Qwen3_5MoeConfig

    text, vision_width = SIZES[size]
    return Qwen3_5MoeConfig(text_config=text, vision_config={"out_hidden_size": vision_width})


@pytest.fixture(scope="module")
def hf_models() -> dict[str, torch.nn.Module]:
    from transformers import Qwen3_5MoeForConditionalGeneration

    with torch.device("meta"):
        return {size: Qwen3_5MoeForConditionalGeneration(hf_config(size)) for size in SIZES}


def shapes_of(model: torch.nn.Module) -> Shapes:
    """Of every tensor, experts one by one."""
    shapes: Shapes = {}
    for name, parameter in model.named_parameters():
        prefix, _, last = name.rpartition(".")
        if not prefix.endswith(".experts"):
            shapes[name] = tuple(parameter.shape)
            continue
        num_experts, rows, columns = parameter.shape
        parts = ("down",) if last == "down_proj" else ("gate", "up")
        for expert in range(num_experts):
            shapes |= {f"{prefix}.{expert}.{part}_proj.weight": (rows // len(parts), columns) for part in parts}
    return shapes


@pytest.fixture(scope="module")
def worker():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module", params=LAYOUTS)
def case(request, worker, hf_models) -> tuple[Built, Shapes, str]:
    size, world_size, layout = LAYOUTS[request.param]
    built = worker.submit(build, hf_config(size), ParallelConfig(**layout), world_size).result()
    return built, shapes_of(hf_models[size]), size


def cut_places(rule: Rule, shapes: tuple[tuple[int, ...], ...], size: int) -> list[torch.Tensor]:
    """What each rank gets of tensors whose elements are numbered, no two the same, along the dimension that is cut."""
    dim, tensors, start = int(isinstance(rule, Columns)), [], 0
    for shape in shapes:
        thin = [length if d == dim else 1 for d, length in enumerate(shape)]
        tensors.append(torch.arange(start, start + shape[dim]).view(thin))
        start += shape[dim]
    return [rule.split(tensors, rank, size).flatten() for rank in range(size)]


def test_every_parameter_is_mapped_and_has_the_shape_that_its_rule_gives(case):
    built, hf_shapes, _ = case
    expected: dict = {}
    for rank, parts in enumerate(built.ranks):
        assert not parts.unmapped, f"rank {rank}"
        for part in parts.parts:
            key = part.rule, tuple(hf_shapes[name] for name in part.hf), part.cut
            if key not in expected:
                expected[key] = tuple(part.rule.split([torch.empty(shape, device="meta") for shape in key[1]], *part.cut).shape)
            assert part.shape == expected[key], f"rank {rank}: {part.hf}"


def test_every_replica_holds_every_tensor_once_and_whole(case):
    built, hf_shapes, _ = case
    holders: dict = defaultdict(lambda: defaultdict(list))  # replica -> tensors of an entry -> places in the group
    for part in (part for rank in built.ranks for part in rank.parts):
        holders[part.replica][part.hf, part.rule, part.cut[1]].append(part.cut[0])
    for replica, entries in holders.items():
        assert Counter(name for names, _, _ in entries for name in names) == Counter(n for n in hf_shapes if is_expert(n) == replica[0])
        for (names, _, size), places in entries.items():
            assert sorted(places) == list(range(size)), names
    for expert in (False, True):
        first, *others = (set(entries) for (kind, _), entries in holders.items() if kind == expert)
        assert all(other == first for other in others), "replicas differ"


def is_expert(name: str) -> bool:
    return ".mlp.experts." in name


def test_the_parts_of_a_tensor_neither_overlap_nor_leave_a_gap(case):
    built, hf_shapes, _ = case
    kinds = {(p.rule, tuple(hf_shapes[name] for name in p.hf), p.cut[1]) for rank in built.ranks for p in rank.parts}
    assert len(kinds) > 10
    for rule, shapes, size in kinds:
        if not isinstance(rule, Whole):
            places = torch.cat(cut_places(rule, shapes, size))
            assert torch.equal(places.sort().values, torch.arange(len(places))), (rule, shapes)


def test_the_ranks_together_publish_every_tensor_of_the_model_once(case):
    built, hf_shapes, _ = case
    published = [tensor for rank in built.ranks for tensor in rank.published]
    assert len(published) == len(hf_shapes), "a tensor is published twice or not at all"
    assert dict(published) == hf_shapes


def test_the_model_has_as_many_parameters_as_its_name_says(case, hf_models):
    built, _, size = case
    counts = {name: math.prod(shape) for rank in built.ranks for name, shape in rank.published}
    total, text = sum(counts.values()), sum(count for name, count in counts.items() if not name.startswith("model.visual."))
    assert total == sum(parameter.numel() for parameter in hf_models[size].parameters())
    assert (f"{total / 1e9:.1f}", f"{text / 1e9:.1f}") == BILLIONS[size]
    assert f"{text / 1e9:.0f}b" == size


def test_the_plan_has_the_parameters_of_every_rank(case):
    """Its own arithmetic, which loads no torch, against the built model: the same shapes, as often, of every rank."""
    from tandem.plan.layout import Layout
    from tandem.plan.parameters import stage_parameters
    from tandem.plan.shapes import shapes_of

    built, _, size = case
    world, sizes = next((world, sizes) for model, world, sizes in LAYOUTS.values() if model == size and world == len(built.ranks))
    layout = Layout(world, world, **{"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1} | sizes)
    shapes = shapes_of(hf_config(size).to_dict())
    for rank, parts in enumerate(built.ranks):
        [chunk] = stage_parameters(shapes, layout, layout.place("pp", rank))
        assert Counter((p.shape, p.expert) for p in chunk) == Counter((part.shape, part.replica[0]) for part in parts.parts), f"rank {rank}"


def test_building_all_ranks_takes_seconds_and_no_memory_for_weights(case):
    built, _, _ = case
    assert built.cpu_seconds < 60
    assert built.peak_bytes < 2e9
