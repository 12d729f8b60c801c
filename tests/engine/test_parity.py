"""The trainer against transformers, and every layout against transformers: log-probs, losses, gradient norms."""

import numpy as np
import pytest
import torch

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_ranks
from tests.engine.layouts import LAYOUTS, LR, NUM_STEPS, Case, Measured, measure
from tests.engine.test_packed import CHUNK, text_sequence, weighted
from tests.examples import make_sequences, write_tiny_model

FORMS = {  # layout, settings
    "padded": ("dp2", {"batch": {"packing": False, "max_tokens_per_device": 400}}),
    "padded_cp2": ("cp2", {"batch": {"packing": False, "max_tokens_per_device": 400}}),
    "one_by_one": ("single", {"batch": {"micro_batch_size": 1}}),
    "recompute_full": ("tp2_pp2_ep2", {"trainer": {"recompute": "full"}}),
    "recompute_selective": ("tp2_cp2_ep2", {"trainer": {"recompute": "selective"}}),
}

DENSE_LAYOUTS = [(1, {}), (2, {"tp": 2, "sp": False}), (4, {"tp": 2, "pp": 2})]

pytestmark = pytest.mark.parallel


def transformers_training(model_folder, sequences, dtype=torch.float32):
    """transformers' log-probs of each response, and its losses and gradient norms over four AdamW steps, sample by sample."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(model_folder, dtype=dtype)
    with torch.no_grad():
        before = [logprobs(model, s).numpy() for s in sequences]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.0)
    total = sum(len(s.response_ids) for s in sequences)
    losses, norms = [], []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = -sum(logprobs(model, s).sum() for s in sequences) / total
        loss.backward()
        losses.append(loss.item())
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
    return before, losses, norms


def logprobs(model, sequence):
    """[R] of the response, by transformers."""
    ids = torch.from_numpy(sequence.token_ids)[None]
    prompt, inputs = sequence.prompt, {"attention_mask": torch.ones_like(ids)}
    if prompt.pixel_values is not None:
        inputs |= {"pixel_values": torch.from_numpy(prompt.pixel_values), "image_grid_thw": torch.from_numpy(prompt.image_grid_thw)}
        inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).long()
    logits = model(input_ids=ids, **inputs).logits[0, len(prompt.token_ids) - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, torch.from_numpy(sequence.response_ids)[:, None])[:, 0]


@pytest.fixture(scope="module")
def reference(tiny_model, sequences):
    return transformers_training(tiny_model, sequences)


@pytest.fixture(scope="module")
def measured(tiny_model, sequences) -> dict[str, Measured]:
    """Every layout and form."""
    cases = {name: Case(layout, tiny_model, sequences) for name, layout in LAYOUTS.items()}
    cases |= {name: Case(LAYOUTS[layout], tiny_model, sequences, settings) for name, (layout, settings) in FORMS.items()}
    return dict(zip(cases, measure([*cases.values()])))


def assert_equal_to_transformers(measured: Measured, reference) -> None:
    before, losses, norms = reference
    assert max(np.abs(ours - theirs).max() for ours, theirs in zip(measured.logprobs, before)) <= 1e-4
    assert measured.losses == pytest.approx(np.array(losses), rel=1e-5)
    for rank_norms in measured.grad_norms.T:
        assert rank_norms == pytest.approx(np.array(norms), rel=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_probs_losses_and_gradient_norms_are_those_of_transformers(layout, measured, reference):
    assert_equal_to_transformers(measured[layout], reference)


@pytest.mark.parametrize("form", FORMS)
def test_how_a_batch_is_cut_or_recomputed_does_not_change_it(form, measured, reference):
    assert_equal_to_transformers(measured[form], reference)


@pytest.mark.parametrize(("trap", "layout"), [("expert gradients", "tp2_etp1"), ("interleaved pipeline", "pp2_vpp2")])
def test_without_our_setting_megatron_trains_wrong_and_says_nothing(trap, layout, tiny_model):
    """If this fails, Megatron has mended it and the setting can go. That ours is right is tested with the layouts."""
    equal = weighted([text_sequence(CHUNK, seed) for seed in range(4)])  # of different lengths the pipeline would break loudly
    batch, function = {"batch": {"micro_batch_size": 1}}, "tests.engine.ranks:train_into_a_trap"
    single = Case(LAYOUTS["single"], tiny_model, equal, batch)
    right, wrong = measure([single, Case(LAYOUTS[layout], tiny_model, equal, batch | {"trap": trap}, function)])
    assert np.abs(wrong.losses / right.losses - 1).max() > 50 * 1e-5, "fifty times what layouts may differ by"


@pytest.mark.parametrize(
    ("recompute", "layers", "experts", "attention"), [("none", 4, 4, 1), ("selective", 4, 8, 2), ("full", 8, 8, 2)], ids=str
)
def test_what_is_recomputed_runs_twice_and_nothing_else(recompute, layers, experts, attention, tiny_model, sequences):
    call = {"model_path": str(tiny_model), "sequences": sequences, "recompute": recompute}
    [counts] = fork_ranks("tests.engine.ranks:count_forwards", ParallelConfig(), 1, **call)
    assert counts == {"layers": layers, "experts": experts, "attention": attention}


def test_a_dense_model_with_tied_embeddings_trains_as_in_transformers(tmp_path):
    model = write_tiny_model(tmp_path / "model", "test-dense", tie_word_embeddings=True)
    sequences = make_sequences(model)
    reference = transformers_training(model, sequences)
    for measured in measure([Case(layout, model, sequences) for layout in DENSE_LAYOUTS]):
        assert_equal_to_transformers(measured, reference)


def test_bf16_is_as_close_to_fp32_as_transformers_own(tiny_model, sequences, reference):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.bfloat16)
    with torch.no_grad():
        theirs = np.concatenate([logprobs(model, s).numpy() for s in sequences]) - np.concatenate(reference[0])
    shares = fork_ranks(
        "tests.engine.ranks:score", ParallelConfig(tp=2), 2, model_path=str(tiny_model), sequences=sequences, model={"dtype": "bfloat16"}
    )
    scored = {index: logprobs for share in shares for index, (logprobs, _) in share.items()}
    ours = np.concatenate([scored[i] for i in range(len(sequences))]) - np.concatenate(reference[0])
    ratio = np.abs(ours).mean() / np.abs(theirs).mean()
    assert np.abs(theirs).mean() > 1e-4, "no bf16 error at all: not bf16"
    assert ratio <= 1.25, f"mean error {np.abs(ours).mean():.2e} against {np.abs(theirs).mean():.2e}"
