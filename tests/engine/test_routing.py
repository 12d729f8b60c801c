"""Router replay in the trainer: every token goes to the experts it was given, in every layout, each choice counted once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tandem.actors.train_group import replayed
from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each
from tandem.errors import RunError
from tests.engine.test_packed import weighted

pytestmark = pytest.mark.parallel

LAYOUTS = {
    "single": (1, {}, {}),
    "recomputed": (1, {}, {"trainer": {"recompute": "full"}}),
    "tp2 ep2": (2, {"tp": 2, "ep": 2}, {}),
    "cp2": (2, {"cp": 2}, {}),
    "pp2": (2, {"pp": 2}, {}),
    "dp2": (2, {}, {}),
}
LOG_PROB_LIMIT = 2e-5


@pytest.fixture(scope="module")
def routed(tiny_model, sequences) -> list:
    """Sequences with experts drawn at random, which no router would choose; not known for the last token and for some others."""
    from transformers import AutoConfig

    text, rng = AutoConfig.from_pretrained(tiny_model).text_config, np.random.default_rng(5)
    made = []
    for sequence in weighted(sequences)[:5]:
        shape = sequence.num_tokens, text.num_hidden_layers, text.num_experts
        experts = rng.random(shape).argsort(-1)[..., : text.num_experts_per_tok].astype(np.int16)
        experts[-1] = experts[3:5] = -1
        made.append(replace(sequence, experts=experts))
    return made


@pytest.fixture(scope="module")
def measured(tiny_model, routed) -> dict[str, list[dict]]:
    given = {"model_path": str(tiny_model), "sequences": routed}
    calls = [
        ("tests.engine.routing_ranks:replay", ParallelConfig(**sizes), ranks, given | sections)
        for ranks, sizes, sections in LAYOUTS.values()
    ]
    return dict(zip(LAYOUTS, fork_each(calls)))


def scores(ranks: list[dict]) -> list[np.ndarray]:
    merged = {index: values for rank in ranks for index, values in rank["scores"].items()}
    return [merged[index][0] for index in sorted(merged)]


@torch.no_grad()
def forced_logprobs(model, sequence) -> np.ndarray:
    """transformers' log-probs [R] when its routers choose `sequence.experts` where these are known."""

    def forced(gate, layer):
        def forward(hidden):
            logits, _, own = type(gate).forward(gate, hidden)
            given = torch.from_numpy(sequence.experts[:, layer].astype(np.int64))
            chosen = torch.where(given[:, :1] < 0, own, given)
            return logits, logits.gather(1, chosen).softmax(-1), chosen

        return forward

    for number, layer in enumerate(model.model.language_model.layers):
        layer.mlp.gate.forward = forced(layer.mlp.gate, number)
    ids = torch.from_numpy(sequence.token_ids)[None]
    images, prompt = {}, sequence.prompt
    if prompt.pixel_values is not None:
        images = {"pixel_values": torch.tensor(prompt.pixel_values), "image_grid_thw": torch.tensor(prompt.image_grid_thw)}
    kinds = (ids == model.config.image_token_id).long()
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, **images).logits[0]
    logprobs = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return logprobs[len(sequence.prompt.token_ids) - 1 :].numpy()


def test_log_probs_are_those_of_transformers_with_the_same_experts(tiny_model, routed, measured):
    from transformers import Qwen3_5MoeForConditionalGeneration

    model = Qwen3_5MoeForConditionalGeneration.from_pretrained(tiny_model, dtype=torch.float32).eval()
    for sequence, ours in zip(routed, scores(measured["single"])):
        np.testing.assert_allclose(ours, forced_logprobs(model, sequence), atol=LOG_PROB_LIMIT)
        free = forced_logprobs(model, replace(sequence, experts=np.full_like(sequence.experts, -1)))
        assert np.abs(ours - free).max() > 100 * LOG_PROB_LIMIT, "replaying other experts changed nothing"


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "single"])
def test_each_token_finds_its_own_experts_in_every_layout(layout, measured):
    for ours, single in zip(scores(measured[layout]), scores(measured["single"]), strict=True):
        np.testing.assert_allclose(ours, single, atol=LOG_PROB_LIMIT)
    norms = [measured[name][0]["update"]["grad_norm"] for name in (layout, "single")]
    np.testing.assert_allclose(*norms, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_choice_is_counted_once(layout, routed, measured):
    num_replayed, num_changed = (sum(r["update"][f"routing/{name}"] for r in measured[layout]) for name in ("num_replayed", "num_changed"))
    assert num_replayed == sum((s.num_tokens - 3) * s.experts[0].size for s in routed)
    metrics = replayed(routed, num_replayed, num_changed)
    assert metrics["routing/replayed_share"] == pytest.approx(1 - 3 * len(routed) / sum(s.num_tokens for s in routed))
    assert 0.3 < metrics["routing/changed_share"] < 0.95  # of random experts


def test_choices_that_were_lost_stop_the_run(routed):
    given = sum((s.num_tokens - 3) * s.experts[0].size for s in routed)
    with pytest.raises(RunError, match=f"{given - 2} choices of experts were replayed, the generator made {given}"):
        replayed(routed, given - 2, 0)
