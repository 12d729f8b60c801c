"""A real vLLM on the CPU against transformers: sampled log-probs, seeds, bans, stops, versions, and new weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tandem.config.schema import RolloutConfig
from tandem.data.types import Sequence
from tandem.errors import RunError, UserError
from tandem.rollout.conversations import Conversations
from tandem.rollout.environment import Maker
from tandem.rollout.types import Request, SamplingParams
from tests.rollout.echo import Echo
from tests.rollout.reference import Reference, assert_same_logprobs
from tests.rollout.remote import RemoteEngine

MAX_MODEL_LEN = 256


@pytest.fixture(scope="module")
def engine(models, banned, stops):
    rollout = RolloutConfig(max_num_seqs=32, cache_bytes=64 << 20, enforce_eager=True)
    engine = RemoteEngine(
        rollout,
        model_path=str(models.a),
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        seed=0,
        banned_token_ids=banned,
        stop_token_ids=stops,
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def references(models, banned):
    torch.set_num_threads(1)
    return Reference(models.a, banned), Reference(models.b, banned)


@pytest.fixture(scope="module")
def weights(models) -> dict[str, dict[str, torch.Tensor]]:
    return {name: load_file(folder / "model.safetensors") for name, folder in vars(models).items()}


def requests(prompts, **sampling) -> list[Request]:
    return [Request(prompt, SamplingParams(**{"num_samples": 3, "max_tokens": 24, "seed": 7} | sampling)) for prompt in prompts]


def replace_tokens(request: Request, max_tokens: int) -> Request:
    return replace(request, sampling=replace(request.sampling, max_tokens=max_tokens))


def token_ids(completions) -> list[list[tuple[int, ...]]]:
    return [[tuple(sample.token_ids.tolist()) for sample in samples] for samples in completions]


def fused_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights with each layer's experts in two tensors, as transformers' modules hold them."""
    result, parts = {}, {}
    for name, tensor in tensors.items():
        prefix, is_expert, rest = name.partition(".mlp.experts.")
        if is_expert:
            number, projection = rest.removesuffix(".weight").split(".")
            parts.setdefault(f"{prefix}.mlp.experts", {}).setdefault(projection, {})[int(number)] = tensor
        else:
            result[name] = tensor
    for prefix, projections in parts.items():
        stacked = {name: torch.stack([some[i] for i in range(len(some))]) for name, some in projections.items()}
        result[f"{prefix}.gate_up_proj"] = torch.cat([stacked["gate_proj"], stacked["up_proj"]], 1)
        result[f"{prefix}.down_proj"] = stacked["down_proj"]
    assert len(parts) == 4
    return result


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_logprobs_are_those_of_transformers(engine, references, weights, prompts, temperature):
    engine.publish(weights["a"])
    completions = engine.generate(requests(prompts, temperature=temperature), engine.version)
    assert_same_logprobs(references[0], prompts, completions, temperature or 1.0)
    if temperature == 0:
        assert len(set(token_ids(completions)[0])) == 1


def test_log_probs_of_every_turn_are_those_of_transformers_on_the_whole_conversation(engine, references, weights, prompts, builder):
    """Turn after turn continues what was sampled, with an image in between; the whole is scored in one pass, as the trainer does."""
    engine.publish(weights["a"])
    conversations = Conversations(Maker(Echo), builder, 3, 10.0, MAX_MODEL_LEN)
    completions = engine.converse(requests(prompts[:3], temperature=0.7, max_tokens=120), engine.version, conversations)
    assert [index for index, _ in engine.finished] != []
    differences, num_turns = [], set()
    for prompt, samples in zip(prompts, completions):
        for c in samples:
            pixels, grids = zip(*Sequence(prompt, c.token_ids, own=c.own, later=c.later).images)
            shown = replace(prompt, pixel_values=np.concatenate(pixels), image_grid_thw=np.concatenate(grids))
            expected, num_clear = references[0].logprobs(shown, c.token_ids, 0.7)
            clear = np.arange(len(c.token_ids))[c.own] < num_clear
            differences.append(np.abs(expected[c.own] - c.logprobs)[clear])
            num_turns.add(len(c.turns))
            assert c.score == 0.5 and c.own[-1] and len(c.logprobs) == c.num_own < len(c.token_ids) <= 120
            assert (c.finish_reason == "turns") == (len(c.turns) == 3) or c.finish_reason == "length"
    found = np.concatenate(differences)
    assert found.max() <= 1e-3 and found.mean() <= 1e-4 and len(found) > 50 and 3 in num_turns
    again = engine.converse(requests(prompts[:3], temperature=0.7, max_tokens=120), engine.version, conversations)
    assert token_ids(again) == token_ids(completions)


def test_samples_depend_on_their_own_seed_only(engine, weights, prompts):
    """Neither on order and company of the requests, nor on how a crowded step cuts a prompt in two."""
    engine.publish(weights["a"])
    crowd = [replace(p, row=replace(p.row, id=f"{p.row.id}/{copy}")) for copy in range(8) for p in prompts]
    all_together = engine.generate(requests(crowd, max_tokens=8), engine.version)
    assert sum(len(p.token_ids) for p in crowd) * 3 > 4096, "more tokens than one step takes"
    alone = engine.generate(requests(crowd[3:4], max_tokens=8), engine.version)
    backwards = engine.generate(requests(crowd[::-1], max_tokens=8), engine.version)[::-1]
    ids = token_ids(all_together)
    assert ids == token_ids(backwards) and ids[3:4] == token_ids(alone)
    distinct = {sample for samples in ids for sample in samples}
    assert len(distinct) > 0.9 * 3 * len(crowd), "every sample has a seed of its own"
    other_seed = engine.generate(requests(crowd[:1], max_tokens=8, seed=8), engine.version)
    assert token_ids(other_seed) != ids[:1]


def test_banned_tokens_never_come_and_stop_tokens_end(engine, weights, prompts, banned, stops, builder):
    engine.publish(weights["a"])
    completions = engine.generate(requests(prompts, num_samples=20), engine.version)
    samples = [(sample, len(prompt.token_ids)) for prompt, some in zip(prompts, completions) for sample in some]
    assert not np.isin(np.concatenate([sample.token_ids for sample, _ in samples]), banned).any()
    assert {sample.finish_reason for sample, _ in samples} == {"stop", "length"}
    for sample, num_prompt_tokens in samples:
        is_stop = np.isin(sample.token_ids, stops)
        assert not is_stop[:-1].any() and is_stop[-1] == (sample.finish_reason == "stop")
        longest = min(24, MAX_MODEL_LEN - num_prompt_tokens)
        assert len(sample.token_ids) == len(sample.logprobs) <= longest
        assert sample.finish_reason == "stop" or len(sample.token_ids) == longest
        assert sample.text == builder.decode(sample.token_ids) and sample.version == engine.version


def test_responses_stay_within_the_model_length(engine, weights, prompts):
    engine.publish(weights["a"])
    long = next(p for p in prompts if len(p.token_ids) > 128)
    (samples,) = engine.generate(requests([long], num_samples=8, max_tokens=10_000), engine.version)
    room = MAX_MODEL_LEN - len(long.token_ids)
    assert {len(s.token_ids) for s in samples if s.finish_reason == "length"} == {room}
    too_long = replace(long, token_ids=np.tile(long.token_ids[:64], 4))
    with pytest.raises(UserError, match="256 tokens"):
        engine.generate(requests([prompts[0], too_long]), engine.version)
    assert len(engine.generate(requests(prompts[:1]), engine.version)) == 1, "what was queued before the refusal is gone"


def test_each_prompt_is_handed_out_once_as_soon_as_its_samples_are_there(engine, weights, prompts):
    engine.publish(weights["a"])
    completions = engine.generate(
        [replace_tokens(request, 2 + 20 * (i == 0)) for i, request in enumerate(requests(prompts))], engine.version
    )
    early = dict(engine.finished)
    assert len(early) == len(engine.finished) == len(prompts) and engine.finished[-1][0] == 0, "the longest comes last"
    assert token_ids([early[i] for i in range(len(prompts))]) == token_ids(completions)


def test_settings_that_vllm_would_bend_are_refused(engine, weights, prompts):
    engine.publish(weights["a"])
    for temperature in (0.001, 2.5):
        with pytest.raises(UserError, match="temperature"):
            engine.generate(requests(prompts[:1], temperature=temperature), engine.version)


def test_prompt_whose_image_tokens_do_not_fit_its_images_is_refused(engine, weights, prompts, builder):
    engine.publish(weights["a"])
    image = prompts[1]
    one_less = np.delete(image.token_ids, np.flatnonzero(image.token_ids == builder.image_token_id)[0])
    for broken in (replace(image, token_ids=one_less), replace(image, pixel_values=None, image_grid_thw=None)):
        with pytest.raises(RunError, match=r"test\.parquet:1.*image tokens"):
            engine.generate(requests([broken]), engine.version)


@pytest.mark.parametrize("form", ["split", "fused"])
def test_published_weights_replace_all_that_came_from_the_old_ones(engine, references, weights, prompts, form):
    """The same prompts before and after: kept keys, states and image features of the old weights must not come back."""
    tensors = {name: some if form == "split" else fused_experts(some) for name, some in weights.items()}
    engine.publish(tensors["a"])
    for _ in range(2):  # the second time from vLLM's caches
        assert_same_logprobs(references[0], prompts, engine.generate(requests(prompts), engine.version), 1.0)
    report = engine.publish(tensors["b"])
    assert report["version"] == engine.version and report["num_tensors"] == len(tensors["b"])
    assert report["missing"] == report["unexpected"] == report["duplicated"] == []
    completions = engine.generate(requests(prompts), engine.version)
    assert_same_logprobs(references[1], prompts, completions, 1.0)
    with pytest.raises(AssertionError, match="max"):
        assert_same_logprobs(references[0], prompts, completions, 1.0)


def flipped_byte(engine, tensors):
    def flip(bucket):
        entry = next((e for e in bucket.entries if e.name == VICTIM), None)
        if entry:
            with open(bucket.path, "r+b") as file:
                file.seek(entry.offset)
                byte = file.read(1)[0]
                file.seek(entry.offset)
                file.write(bytes([byte ^ 1]))
        return bucket

    engine.publish(tensors, change_bucket=flip)


def dropped(engine, tensors):
    engine.publish({name: tensor for name, tensor in tensors.items() if name != VICTIM}, expected_names=list(tensors))


def dropped_and_not_expected(engine, tensors):
    engine.publish({name: tensor for name, tensor in tensors.items() if name != VICTIM})


def expert_dropped_and_not_expected(engine, tensors):
    engine.publish({name: tensor for name, tensor in tensors.items() if "layers.1.mlp.experts.5.up_proj" not in name})


def sent_twice(engine, tensors):
    engine.publish([*tensors.items(), (VICTIM, tensors[VICTIM])])


def unknown(engine, tensors):
    engine.publish({**tensors, f"{VICTIM}_new": torch.ones(3)}, expected_names=list(tensors))


def ignored_by_vllm(engine, tensors):
    """vLLM passes over biases that it does not know."""
    engine.publish({**tensors, VICTIM.replace("weight", "bias"): torch.ones(3)}, expected_names=list(tensors))


def wrong_shape(engine, tensors):
    engine.publish({**tensors, VICTIM: tensors[VICTIM][:-1]})


def other_version(engine, tensors):
    engine.publish(tensors, change_bucket=lambda bucket: replace(bucket, version=bucket.version + 1))


VICTIM = "model.language_model.layers.3.self_attn.k_proj.weight"
FAULTS = {
    flipped_byte: "k_proj",
    dropped: "1 missing: .*k_proj",
    dropped_and_not_expected: "missing: .*qkv_proj",  # vLLM's name: there is none of ours to tell
    expert_dropped_and_not_expected: r"1 missing: .*layers\.1\.mlp\.experts.*\.5\n",
    sent_twice: "1 duplicated: .*k_proj",
    unknown: "k_proj.weight_new",
    ignored_by_vllm: "1 unexpected: .*k_proj.bias",
    wrong_shape: "k_proj",
    other_version: "version",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_bad_publication_is_refused_by_name_and_leaves_no_version(engine, references, weights, prompts, fault):
    engine.publish(weights["a"])
    good = engine.version
    with pytest.raises(RunError, match=FAULTS[fault]):
        fault(engine, weights["b"])
    for version in (good, engine.version):
        with pytest.raises(RunError, match="no complete version"):
            engine.generate(requests(prompts), version)
    engine.publish(weights["b"])  # and the engine is not lost
    assert_same_logprobs(references[1], prompts, engine.generate(requests(prompts), engine.version), 1.0)


@pytest.mark.parametrize("step", [-1, 1])
def test_generation_with_another_version_is_refused(engine, weights, prompts, step):
    engine.publish(weights["a"])
    with pytest.raises(RunError, match=f"holds version {engine.version}"):
        engine.generate(requests(prompts), engine.version + step)


def test_publication_that_its_sender_left_open_does_not_spoil_the_next(engine, references, weights, prompts):
    engine.begin_update(engine.version + 1)
    with pytest.raises(RunError, match="no complete version"):
        engine.generate(requests(prompts), engine.version)
    engine.publish(weights["b"])
    assert_same_logprobs(references[1], prompts, engine.generate(requests(prompts), engine.version), 1.0)


def test_weights_that_give_no_numbers_stop_the_run(engine, weights, prompts):
    norm = "model.language_model.norm.weight"
    engine.publish({**weights["a"], norm: torch.full_like(weights["a"][norm], float("nan"))})
    with pytest.raises(RunError, match="not numbers"):
        engine.generate(requests(prompts), engine.version)


def test_straight_copies_and_vllm_s_own_reload_give_the_same_numbers(engine, models, weights, prompts, banned, stops):
    """Bit for bit, from a first and from a second publication in many buckets; what waits for more must survive a bucket's second use."""
    rollout = RolloutConfig(max_num_seqs=32, cache_bytes=64 << 20, enforce_eager=True, direct_load=False)
    settings = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN, "seed": 0, "banned_token_ids": banned, "stop_token_ids": stops}
    other = RemoteEngine(rollout, model_path=str(models.a), **settings)
    for name in ("b", "a"):
        found = []
        for each in (engine, other):
            each.publish(weights[name], bucket_bytes=1 << 14)
            found.append(each.generate(requests(prompts), each.version))
        assert token_ids(found[0]) == token_ids(found[1])
        for ours, theirs in zip(*found):
            for a, b in zip(ours, theirs):
                np.testing.assert_array_equal(a.logprobs, b.logprobs)
    with pytest.raises(RunError, match=r"missing: .*qkv_proj"):
        dropped_and_not_expected(other, weights["a"])
    other.publish(weights["a"])
    other.close()
