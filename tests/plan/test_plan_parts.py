"""Figures that the plan repeats because it cannot import torch are those of the code, and its arithmetic is that of other ways to count."""

import itertools

import pytest

from tandem.plan import delta, peak
from tandem.plan.batch import MicroBatch, fullest_micro_batch, num_micro_batches
from tandem.plan.flops import batch_flops
from tandem.plan.generator import generator
from tandem.plan.layout import Group, Layout
from tandem.plan.parameters import stage_parameters
from tandem.plan.pipeline import bubble, moments
from tandem.plan.shapes import PREPARED, PUBLISHED, shapes_of
from tests.plan.recipes import recipe


def test_chunk_sizes_are_those_of_the_code():
    from tandem.qwen3_5 import gated_delta, scores

    assert peak.CHUNK_BYTES == scores.CHUNK_BYTES
    for on_cpu, device in ((True, "cpu"), (False, "npu")):
        for width in (256, 1024, 8192):
            assert delta.segment_size(on_cpu, width) == gated_delta.segment_size(device, width)


@pytest.mark.parametrize("lengths", [(1,), (31, 32, 33), (700, 5, 64, 65, 129), tuple(range(1, 90, 7)) * 3])
def test_segments_are_those_that_the_delta_rule_makes(lengths):
    import torch

    from tandem.qwen3_5.gated_delta import chunk_layout

    boundaries = torch.tensor([0, *itertools.accumulate(lengths)])
    for device, width in (("cpu", 256), ("cpu", 512), ("meta", 256)):
        real = [
            (s.sequences.stop - s.sequences.start, s.chunks.stop - s.chunks.start) for s in chunk_layout(boundaries, width, device).segments
        ]
        assert delta.segments(lengths, delta.segment_size(device == "cpu", width)) == real


def test_the_demos_table_is_what_the_demo_makes():
    from tandem.qwen3_5.tiny import SIZES, make_config

    class Tokenizer:
        def __len__(self):
            return SIZES["demo"].vocab_size

        def convert_tokens_to_ids(self, tokens):
            return list(range(len(tokens)))

    made = make_config(Tokenizer(), SIZES["demo"], tie_word_embeddings=False)
    assert shapes_of(made.to_dict()) == shapes_of(PREPARED["demo"])


@pytest.mark.parametrize("path", PUBLISHED)
def test_what_transformers_fills_in_is_what_the_plan_fills_in(path):
    from transformers import Qwen3_5MoeConfig

    assert shapes_of(Qwen3_5MoeConfig(**PUBLISHED[path]).to_dict()) == shapes_of(PUBLISHED[path])


def test_groups_are_megatrons():
    """16 ranks, tp 2 pp 2 cp 2 ep 4, from the fastest: tensor, context, data, pipeline; of experts: expert, its data, pipeline."""
    layout = Layout(world=16, devices_per_node=8, tp=2, pp=2, vpp=1, cp=2, ep=4, etp=1)
    members = {name: [rank for rank in range(16) if rank - group.place(rank) * group.stride == 0] for name, group in layout.groups.items()}
    assert (layout.dp, layout.expert_dp) == (2, 2)
    assert members["tp"] == [0, 1]
    assert members["cp"] == [0, 2]
    assert members["dp"] == [0, 4]
    assert members["dp_cp"] == [0, 2, 4, 6]
    assert members["pp"] == [0, 8]
    assert members["ep"] == [0, 1, 2, 3]
    assert members["expert_dp"] == [0, 4]
    assert [layout.chunks(stage, 8) for stage in (0, 1)] == [[range(0, 4)], [range(4, 8)]]


@pytest.mark.parametrize(
    ("group", "share"), [(Group(2, 1), 0.0), (Group(8, 1), 0.0), (Group(16, 1), 8 / 15), (Group(2, 8), 1.0), (Group(4, 4), 2 / 3)]
)
def test_traffic_leaves_the_node_as_far_as_partners_are_elsewhere(group, share):
    assert group.off_node_share(8) == pytest.approx(share)


def test_a_stage_of_a_pipeline_has_as_many_micro_batches_in_flight_as_stages_are_left():
    layout = Layout(world=4, devices_per_node=4, tp=1, pp=4, vpp=1, cp=1, ep=1, etp=1)
    for stage in range(4):
        flights = [len(flying) for flying, _ in moments(layout, stage, 6)]
        assert max(flights) == 4 - stage
        assert [done for _, done in moments(layout, stage, 6)] == [(0, batch) for batch in range(6)]
    assert bubble(layout, 6) == pytest.approx(3 / 9)


def test_interleaved_stages_run_their_last_chunk_backward_first():
    layout = Layout(world=2, devices_per_node=2, tp=1, pp=2, vpp=2, cp=1, ep=1, etp=1)
    done = [flight for _, flight in moments(layout, 0, 2)]
    assert done == [(1, 0), (1, 1), (0, 0), (0, 1)]
    assert max(len(flying) for flying, _ in moments(layout, 0, 8)) == 5  # 2 * 1 + 2 warm-up passes, and the one before its backward


@pytest.mark.parametrize("path", PUBLISHED)
def test_operations_of_a_token_are_twice_the_weights_that_it_meets(path):
    """One token meets its top-k experts and every dense weight but the embedding; nothing else is a product at length 1 but the state's."""
    shapes = shapes_of(PUBLISHED[path])
    one = Layout(1, 1, tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1)
    [parameters] = stage_parameters(shapes, one, 0)
    dense = sum(p.numel for p in parameters if not p.expert and len(p.shape) > 1 and not p.name.startswith(("visual", "embedding")))
    experts = sum(p.numel for p in parameters if p.expert) * shapes.num_experts_per_tok / shapes.num_experts
    met = 2 * (dense + experts)
    assert met <= batch_flops(shapes, MicroBatch((1,))).forward < 1.08 * met


def test_pairs_of_tokens_are_counted_in_a_quarter_of_the_layers():
    shapes = shapes_of(PUBLISHED["Qwen/Qwen3.5-35B-A3B"])
    short, long = (batch_flops(shapes, MicroBatch(lengths)).forward for lengths in ((1024, 1024), (2048,)))
    more_pairs = 2048 * 2049 / 2 - 2 * 1024 * 1025 / 2
    assert long - short == pytest.approx(10 * 4 * more_pairs * 16 * 256)  # products with keys and with values, 16 heads of 256


def test_micro_batches_of_the_longest_sequences():
    config = recipe("35b_npu", batch={"micro_batch_size": 1})
    assert num_micro_batches(config, dp=4) == 32 * 5 // 4
    assert fullest_micro_batch(config) == MicroBatch((3072,), 1024, 1)
    packed = recipe("35b_npu", batch={"micro_batch_size": 0, "max_tokens_per_device": 8192})
    assert fullest_micro_batch(packed).lengths == (3072, 3072, 2048)
    assert num_micro_batches(packed, dp=4) == 20


def test_keys_values_and_states_of_a_generator_on_paper():
    """35B on 8 devices: its 2 key-value heads are copied, so each device has one of 256, in bfloat16, in 10 layers; the other 30 have 4 of
    32 value heads' states, 128 x 128 in fp32, and 3 tokens of convolution inputs, an eighth of 2 * 2048 + 4096."""
    made = generator(recipe("35b_npu"), shapes_of(PUBLISHED["Qwen/Qwen3.5-35B-A3B"]), 64 << 30)
    assert made.of_token == 10 * 2 * 256 * 2
    assert made.of_sequence == 30 * (4 * 128 * 128 * 4 + 3 * 1024 * 2)
    assert made.weights + made.working + made.cache == int(0.6 * (64 << 30))
    assert made.weights == pytest.approx(35.1e9 * 2 / 8, rel=0.02)


def test_a_config_whose_sizes_are_missing_is_told():
    from tandem.errors import UserError

    with pytest.raises(UserError, match="no head_dim"):
        shapes_of(
            {"text_config": {name: value for name, value in PUBLISHED["Qwen/Qwen3.5-35B-A3B"]["text_config"].items() if name != "head_dim"}}
        )


def test_search_looks_at_every_legal_layout_and_puts_those_that_fit_first():
    from tandem.plan.plan import Machine, legal_shapes
    from tandem.plan.search import best_layouts

    config = recipe("35b_gpu")
    shapes, _ = legal_shapes(config)
    found = best_layouts(config, shapes, Machine(device_bytes=80 << 30), limit=1000)
    keys = [tuple(one.layout.values()) for one in found]
    assert len(set(keys)) == len(keys)
    assert (2, 1, 1, 8, 0) in keys
    assert all(shapes.num_layers % pp == 0 and tp <= 2 for tp, pp, *_ in keys)
    fits = [one.plan.fits for one in found]
    assert fits == sorted(fits, reverse=True)
    best = [one.seconds for one in found if one.plan.fits]
    assert best == sorted(best)
    few = [tuple(one.layout.values()) for one in best_layouts(config, shapes, Machine(device_bytes=80 << 30), limit=len(best) - 1)]
    assert few == keys[: len(best) - 1], "those that are not looked at would not have come first"
