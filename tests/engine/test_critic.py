"""The critic beside the policy: values are those of transformers' hidden states, and every layout learns as one process does."""

import json

import numpy as np
import pytest
import torch

from tandem.config.schema import ParallelConfig
from tandem.data.types import Sequence
from tandem.engine.fork_ranks import fork_each
from tandem.plan.layout import Layout
from tandem.plan.parameters import stage_parameters
from tandem.plan.shapes import shapes_of
from tandem.plan.states import rank_states
from tests.engine.critic_ranks import head
from tests.engine.ranks import config_for

NUM_STEPS, LR = 3, 2e-3
LAYOUTS = {
    "single": (1, {}),
    "dp2": (2, {}),
    "tp2": (2, {"tp": 2}),
    "pp2": (2, {"pp": 2}),
    "cp2": (2, {"cp": 2}),
}

pytestmark = pytest.mark.parallel


@pytest.fixture(scope="module")
def taught(sequences) -> list[Sequence]:
    """The sequences with a target for each token, old values beside it, and weights that add up to 1."""
    rng, total, made = np.random.default_rng(5), sum(len(s.response_ids) for s in sequences), []
    for sequence in sequences:
        n = len(sequence.response_ids)
        fields = {"weights": np.full(n, 1 / total), "value_targets": rng.normal(0.5, 0.3, n), "old_values": rng.normal(0.25, 0.3, n)}
        made.append(Sequence(sequence.prompt, sequence.response_ids, {k: v.astype(np.float32) for k, v in fields.items()}))
    return made


@pytest.fixture(scope="module")
def measured(tiny_model, taught, tmp_path_factory) -> dict[str, list[dict]]:
    steps = {"num_steps": NUM_STEPS, "lr": LR}
    calls = [
        (
            "tests.engine.critic_ranks:learn_values",
            ParallelConfig(**sizes),
            ranks,
            {"model_path": str(tiny_model), "sequences": taught, "folder": str(tmp_path_factory.mktemp(name)), **steps},
        )
        for name, (ranks, sizes) in LAYOUTS.items()
    ]
    return dict(zip(LAYOUTS, fork_each(calls)))


def values_of(shares: list[dict], what: str) -> np.ndarray:
    """All values, in the order of the sequences."""
    found = {index: values for share in shares for index, (values,) in share[what].items()}
    return np.concatenate([found[index] for index in sorted(found)])


def losses(shares: list[dict]) -> list[float]:
    return [sum(share["steps"][step].get("loss/value", 0.0) for share in shares) for step in range(NUM_STEPS)]


def test_values_are_the_heads_view_of_transformers_hidden_states_before_each_token(tiny_model, taught, measured):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    expected = []
    for sequence in taught:
        ids, prompt = torch.from_numpy(sequence.token_ids)[None], sequence.prompt
        inputs = {"attention_mask": torch.ones_like(ids)}
        if prompt.pixel_values is not None:
            inputs |= {"pixel_values": torch.from_numpy(prompt.pixel_values), "image_grid_thw": torch.from_numpy(prompt.image_grid_thw)}
            inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).long()
        with torch.no_grad():
            hidden = model.model(input_ids=ids, **inputs).last_hidden_state[0]
        states = hidden[len(prompt.token_ids) - 1 : -1]
        expected += [float(state @ head(hidden.size(1))[0]) + 0.25 for state in states]
    assert values_of(measured["single"], "values") == pytest.approx(expected, abs=1e-4)
    assert not values_of(measured["single"], "zeros").any()


def test_the_loss_is_the_weighted_sum_over_single_tokens(taught, measured):
    values, total = iter(values_of(measured["single"], "values").tolist()), 0.0
    for sequence in taught:
        fields = sequence.fields
        for weight, target, old in zip(fields["weights"].tolist(), fields["value_targets"].tolist(), fields["old_values"].tolist()):
            value = next(values)
            near = max(old - 0.5, min(old + 0.5, value))
            total += weight * max((value - target) ** 2, (near - target) ** 2) / 2
    assert losses(measured["single"])[0] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "single"])
def test_every_layout_learns_as_one_process_does(layout, measured):
    ours, right = measured[layout], measured["single"]
    assert values_of(ours, "values") == pytest.approx(values_of(right, "values"), abs=1e-4)
    assert losses(ours) == pytest.approx(losses(right), rel=1e-4)
    for step in range(NUM_STEPS):
        assert {round(share["steps"][step]["grad_norm"], 12) for share in ours} == {round(ours[0]["steps"][step]["grad_norm"], 12)}
        assert ours[0]["steps"][step]["grad_norm"] == pytest.approx(right[0]["steps"][step]["grad_norm"], rel=1e-3)
    assert values_of(ours, "after") == pytest.approx(values_of(right, "after"), abs=2e-4)
    assert losses(right)[-1] < losses(right)[0] and right[0]["steps"][0]["grad_norm"] > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_has_the_critic_and_its_optimizer_and_the_policy_is_another_model(layout, measured):
    for share in measured[layout]:
        assert share["policy_equal"]
        assert share["again"] == share["gone_on"]
        assert all(np.array_equal(share["loaded"][i][0], share["after"][i][0]) for i in share["after"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_plan_predicts_the_critics_bytes_to_the_byte(layout, measured, tiny_model):
    ranks, sizes = LAYOUTS[layout]
    config = config_for(ParallelConfig(**sizes), trainer={"devices_per_node": ranks}, model={"dtype": "float32"})
    where, shapes = Layout.of(config), shapes_of(json.loads((tiny_model / "config.json").read_text()))
    for share in measured[layout]:
        chunks = stage_parameters(shapes, where, where.place("pp", share["rank"]), critic=True)
        states = rank_states(chunks, config, where, share["rank"])
        assert share["held"] == {"weights": states.weights, "gradients": states.gradients, "optimizer": states.optimizer}
