"""What the plan predicts is what the tensors of a real update have."""

import pytest

from tests.examples import make_sequences, write_tiny_model
from tests.plan.accuracy import CASES, compare, off, wrong

pytestmark = pytest.mark.parallel
QUICK = {"tp2_ep2", "pp2_vpp2", "cp2", "single_full", "tp2_vision_cut_bf16", "tp2_bf16_optimizer_on_cpu"}  # the benchmark has all


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    model = write_tiny_model(tmp_path_factory.mktemp("model"), "test")
    return compare(model, make_sequences(model), tuple(case for case in CASES if case.name in QUICK))


def test_weights_gradients_and_optimizer_are_predicted_to_the_byte_and_the_rest_within_a_tenth(rows):
    assert {row["layout"] for row in rows} == QUICK
    assert not wrong(rows)


def test_activations_are_mostly_right_to_a_few_percent(rows):
    activations = [off(row) for row in rows if row["what"] == "activations"]
    assert sorted(activations)[len(activations) // 2] < 0.02
