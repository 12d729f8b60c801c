"""Use of the devices' peak: operations counted on paper for the demo's model, and what must not be counted."""

import numpy as np
import pytest

from tandem.devices import cpu, npu
from tandem.devices.cuda import stated_flops
from tandem.plan.batch import MicroBatch
from tandem.plan.flops import batch_flops
from tandem.run import loop
from tandem.run.mfu import mfu, sequence_flops, shapes
from tests.run.fake_run import FakeRun

LOOSE = "fidelity.max_logprob_abs_diff_mean=0"
OFF = ["algorithm.kl.coef=0", LOOSE]
# Two sequences of 2 + 3 tokens: 10 tokens, 2 * (5 * 6 / 2) = 30 pairs. Hidden size 96: a token times a column is 2 * 96 = 192.
LINEAR = 10 * 192 * (64 + 64 + 128 + 128 + 4 + 4 + 128) + 10 * 2 * (64 + 64 + 128) * 4  # q k v z b a out, and the convolution
CHUNKS = 10 * 4 * 2 * (2 * 64 * 32 + 64 * 64 / 3 + 3 * 32 * 32 + 2 * 64 * 32)  # 4 heads of 32 x 32 in chunks of 64
ATTENTION = 10 * 192 * (3 * 128 + 2 * 64) + 30 * 4 * 128  # q, its gate, out; k, v of 2 heads; keys and values of each pair
EXPERTS = 2 * 10 * 192 * (4 + 3 * (2 * 64 + 64))  # two layers: router, two experts of four and the shared one, three matrices each
LOGITS = 10 * 192 * 384
FORWARD = LINEAR + CHUNKS + ATTENTION + EXPERTS + LOGITS


def step_of(tmp_path, *settings: str, peak: float | None = 1e9) -> dict[str, float]:
    run = FakeRun(tmp_path, [[[1.0, 0.0]]], *OFF, *settings)
    run.peak_flops = peak
    return loop.one_step(run, 1)


def test_mfu_of_a_step_is_the_number_on_paper(tmp_path):
    metrics = step_of(tmp_path, "trainer.devices_per_node=2")
    assert metrics["mfu"] == pytest.approx(3 * FORWARD / (metrics["time/update_s"] * 1e9 * 2), rel=1e-9)


def test_every_pass_over_the_samples_counts(tmp_path):
    metrics = step_of(tmp_path, "trainer.devices_per_node=1", "batch.num_epochs=3")
    assert metrics["mfu"] == pytest.approx(3 * 3 * FORWARD / (metrics["time/update_s"] * 1e9), rel=1e-9)


def test_without_a_known_peak_there_is_no_mfu_rather_than_none_or_infinity(tmp_path):
    assert "mfu" not in step_of(tmp_path, peak=None)
    assert cpu.peak_flops("float32") is None and npu.peak_flops("bfloat16") is None


def test_a_critic_alone_counts_without_logits_and_both_together_count_twice(tmp_path):
    run = FakeRun(tmp_path, [[[1.0, 0.0]]], "algorithm.advantage=gae", "critic.warmup_steps=1", "trainer.devices_per_node=1", *OFF)
    sequences = [sample.sequence() for sample in run_samples(run)]
    warm, both = (mfu(run.config, sequences, step, seconds=1.0, peak_flops=1e9)["mfu"] for step in (1, 2))
    assert warm == pytest.approx(3 * (FORWARD - LOGITS) / 1e9)
    assert both == pytest.approx(3 * (2 * FORWARD - LOGITS) / 1e9)


def run_samples(run):
    from tandem.run.collect import collect
    from tandem.run.metrics import Stopwatch

    return collect(run, 1, Stopwatch(run.track))[0]


def test_images_of_different_sizes_count_by_their_own_pairs_and_a_frozen_tower_has_no_backward(tmp_path):
    from dataclasses import replace

    run = FakeRun(tmp_path, [[[1.0, 0.0]]], *OFF)
    first, second = (sample.sequence() for sample in run_samples(run))
    pixels = np.zeros((16, 384), np.float32)
    small, large = (replace(first.prompt, pixel_values=pixels, image_grid_thw=np.array([[1, side, side]])) for side in (4, 8))
    flops = sequence_flops(shapes("", "demo"), [replace(first, prompt=small), replace(second, prompt=large)])

    def tower(patches: int) -> int:
        block = patches * 2 * 64 * (4 * 64 + 2 * 128) + 4 * patches * patches * 64
        return 2 * block + patches * 2 * 384 * 64 + patches // 4 * 2 * 256 * (256 + 96)

    assert flops.vision == tower(16) + tower(64)
    assert flops.layers + flops.logits == pytest.approx(FORWARD)
    assert flops.useful() - flops.useful(freeze_vision=True) == 2 * flops.vision


def test_the_plan_counts_the_same_operations(tmp_path):
    sequences = [sample.sequence() for sample in run_samples(FakeRun(tmp_path, [[[1.0, 0.0]]], *OFF))]
    of = shapes("", "demo")
    assert sequence_flops(of, sequences).useful() == batch_flops(of, MicroBatch((5, 5))).useful()


@pytest.mark.parametrize(
    ("card", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H20", 148.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_card_is_known_by_whole_words_of_its_name(card, tera):
    assert stated_flops(card, "bfloat16") == (None if tera is None else tera * 1e12)
    assert stated_flops(card, "float32") is None
