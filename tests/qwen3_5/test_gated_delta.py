"""The packed gated delta rule against the recurrence token by token in float64, and transformers; no sequence sees its neighbours."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from tandem.qwen3_5 import gated_delta
from tandem.qwen3_5.causal_conv import causal_conv
from tandem.qwen3_5.gated_delta import chunk_layout, gated_delta_rule

WIDTH = 1024  # that of larger heads than these, for which a CPU's segments have 8 chunks
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 16, 24
NAMES = ("q", "k", "v", "g", "beta", "initial_state")


def boundaries(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def make_inputs(lengths: list[int], seed: int = 0) -> list[torch.Tensor]:
    """q, k, v, g, beta and initial states, fp32, with gradients."""
    generator, total = torch.Generator().manual_seed(seed), sum(lengths)
    q, k = (torch.randn(total, KEY_HEADS, KEY_DIM, generator=generator) for _ in range(2))
    v = torch.randn(total, VALUE_HEADS, VALUE_DIM, generator=generator)
    g, beta = -torch.rand(total, VALUE_HEADS, generator=generator), torch.rand(total, VALUE_HEADS, generator=generator)
    state = torch.randn(len(lengths), VALUE_HEADS, KEY_DIM, VALUE_DIM, generator=generator)
    return [x.requires_grad_() for x in (q, k, v, g, beta, state)]


def rule(lengths: list[int], q, k, v, g, beta, state=None) -> tuple[torch.Tensor, torch.Tensor]:
    return gated_delta_rule(q, k, v, g, beta, chunk_layout(boundaries(lengths), WIDTH), state)


def recurrence(lengths: list[int], q, k, v, g, beta, state) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, one token after the other, in float64."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    q, k = ((x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(v.size(1) // x.size(1), 1) for x in (q, k))
    outputs, finals, token = [], [], 0
    for length, S in zip(lengths, state):
        for t in range(token, token + length):
            S = S * g[t].exp()[:, None, None]
            correction = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", S, k[t]))
            S = S + k[t][:, :, None] * correction[:, None, :]
            outputs.append(torch.einsum("hkv,hk->hv", S, q[t]) * q.size(-1) ** -0.5)
        finals.append(S)
        token += length
    return torch.stack(outputs), torch.stack(finals)


def with_gradients(function, lengths: list[int], inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs, final states and the gradients of a random weighing of both."""
    o, final = function(lengths, *inputs)
    generator = torch.Generator().manual_seed(9)
    loss = sum((x * torch.randn(x.shape, generator=generator)).sum() for x in (o, final))
    return {"o": o.detach(), "final": final.detach()} | dict(zip(NAMES, torch.autograd.grad(loss, inputs)))


def assert_equal_up_to(actual: dict, expected: dict, tolerance: float) -> None:
    for name, right in expected.items():
        error = (actual[name].double() - right.double()).abs().max()
        assert error <= tolerance * max(1.0, float(right.abs().max())), f"{name} is off by {error:.2e}"


@pytest.mark.parametrize("segment", [(32, 2, 8), (64, 2, 4), (64, 64, 128)], ids=str)
@pytest.mark.parametrize(
    "lengths", [[1], [31], [32], [33], [63], [64], [65], [1, 63, 64, 65, 1], [70, 0, 5], [200, 3, 129, 64, 300]], ids=str
)
def test_outputs_states_and_gradients_are_those_of_the_recurrence(lengths, segment, monkeypatch):
    monkeypatch.setattr(gated_delta, "segment_size", lambda device, width: segment)
    inputs = make_inputs(lengths)
    assert_equal_up_to(with_gradients(rule, lengths, inputs), with_gradients(recurrence, lengths, inputs), 5e-6)


@pytest.mark.parametrize(
    ("what", "g", "beta"),
    [("no decay", 0.0, 0.5), ("strong decay", -60.0, 0.5), ("all forgotten", -1e4, 0.5), ("no write", -0.5, 0.0), ("full write", 0.0, 1.0)],
)
def test_extremes_of_decay_and_write_strength_stay_finite_and_right(what, g, beta):
    lengths = [150, 1]
    inputs = make_inputs(lengths)
    with torch.no_grad():
        inputs[3].fill_(g)
        inputs[4].fill_(beta)
    actual = with_gradients(rule, lengths, inputs)
    assert all(x.isfinite().all() for x in actual.values())
    assert_equal_up_to(actual, with_gradients(recurrence, lengths, inputs), 5e-6)


def test_one_key_repeated_for_a_whole_chunk_does_not_lose_precision():
    """The worst case of the triangular system inside a chunk: all its entries are as large as they get."""
    lengths = [128]
    inputs = make_inputs(lengths)
    with torch.no_grad():
        inputs[1].copy_(inputs[1][:1].expand_as(inputs[1]))
        inputs[3].fill_(-1e-3)
        inputs[4].fill_(0.99)
    assert_equal_up_to(with_gradients(rule, lengths, inputs), with_gradients(recurrence, lengths, inputs), 5e-6)


@pytest.mark.parametrize("poison", [3.0, float("nan")])
def test_a_neighbour_does_not_change_a_sequence_by_a_bit(poison):
    """The state leak: neither recurrence, convolution nor padding slots may carry anything over a boundary."""
    lengths, kept = [5, 70, 130, 3], slice(5, 75)
    weight = torch.randn(VALUE_HEADS * VALUE_DIM, 4, generator=torch.Generator().manual_seed(3))
    position = torch.cat([torch.arange(n) for n in lengths])

    def run(change: bool) -> list[torch.Tensor]:
        inputs = make_inputs(lengths)
        if change:
            with torch.no_grad():
                for x in inputs[:5]:
                    x[: kept.start], x[kept.stop :] = -abs(poison), -abs(poison)
                inputs[5][[0, 2, 3]] = poison
        convolved = causal_conv(inputs[2].flatten(1), weight, position).view_as(inputs[2])
        o, final = rule(lengths, inputs[0], inputs[1], convolved, *inputs[3:])
        gradients = torch.autograd.grad(o[kept].sum() + final[1].square().sum(), inputs)
        return [o[kept], final[1], *(x[kept] for x in gradients[:5]), gradients[5][1]]

    for before, after in zip(run(change=False), run(change=True)):
        assert before.isfinite().all() and torch.equal(before, after)


@pytest.mark.parametrize("cut", [64, 100])
def test_two_halves_chained_by_their_state_equal_the_whole(cut):
    lengths = [200]
    inputs = make_inputs(lengths)

    def halves(lengths, *inputs):
        *tokens, state = inputs
        first, state = rule([cut], *(x[:cut] for x in tokens), state)
        second, state = rule([200 - cut], *(x[cut:] for x in tokens), state)
        return torch.cat([first, second]), state

    assert_equal_up_to(with_gradients(halves, lengths, inputs), with_gradients(rule, lengths, inputs), 2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_equals_the_rule_of_transformers_one_sequence_at_a_time(dtype):
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import torch_chunk_gated_delta_rule

    lengths = [1, 100, 64, 200]
    inputs = [x.detach().to(dtype if x.dim() == 3 else torch.float32).requires_grad_() for x in make_inputs(lengths)]

    def theirs(lengths, q, k, v, g, beta, state):
        q, k = (x.repeat_interleave(2, 1) for x in (q, k))
        parts = zip(*(x.split(lengths) for x in (q, k, v, g, beta)), state)
        calls = [
            torch_chunk_gated_delta_rule(
                *(x[None] for x in tokens), initial_state=S[None], output_final_state=True, use_qk_l2norm_in_kernel=True
            )
            for *tokens, S in parts
        ]
        return torch.cat([o[0] for o, _ in calls]), torch.cat([final for _, final in calls])

    ours, expected = with_gradients(rule, lengths, inputs), with_gradients(theirs, lengths, inputs)
    assert {name: x.dtype for name, x in ours.items()} == {name: x.dtype for name, x in expected.items()}
    assert_equal_up_to(
        ours, expected, 2e-6 if dtype == torch.float32 else 2**-7
    )  # both round once to bf16, theirs the summed key heads too


@pytest.mark.parametrize("wanted", NAMES)
def test_a_gradient_asked_for_alone_is_the_same(wanted):
    lengths = [70, 5]
    inputs = make_inputs(lengths)
    expected = with_gradients(rule, lengths, inputs)[wanted]
    alone = [x.detach().requires_grad_(name == wanted) for name, x in zip(NAMES, inputs)]
    o, final = rule(lengths, *alone)
    generator = torch.Generator().manual_seed(9)
    sum((x * torch.randn(x.shape, generator=generator)).sum() for x in (o, final)).backward()
    assert [x.grad is not None for x in alone] == [name == wanted for name in NAMES]
    assert torch.equal(alone[NAMES.index(wanted)].grad, expected)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_under_a_checkpoint_gradients_are_bit_for_bit_the_same(use_reentrant):
    lengths = [70, 5, 130]
    inputs = make_inputs(lengths)
    recomputed = lambda lengths, *inputs: checkpoint(rule, lengths, *inputs, use_reentrant=use_reentrant)  # noqa: E731

    def backward(function) -> list[torch.Tensor]:  # reentrant checkpoints refuse autograd.grad
        leaves = [x.detach().requires_grad_() for x in inputs]
        o, final = function(lengths, *leaves)
        (o.square().sum() + final.square().sum()).backward()
        return [x.grad for x in leaves]

    assert all(torch.equal(a, b) for a, b in zip(backward(recomputed), backward(rule)))


class ElementsWritten(TorchDispatchMode):
    """Counts the elements that operators write."""

    total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            written = args[2] if function is torch.ops.aten.index_put_.default else result  # a scatter writes its values
            self.total += sum(x.numel() for x in tree_leaves(written) if isinstance(x, torch.Tensor))
        return result


@pytest.mark.parametrize("lengths", [[640], [640] + 10 * [64]], ids=["one long", "one long and ten short"])
def test_work_of_forward_and_backward_grows_with_the_tokens_alone(lengths):
    """A backward that fills a whole tensor at every step, or a padded batch, would grow fourfold here."""

    def work(lengths: list[int]) -> int:
        inputs = make_inputs(lengths)
        with ElementsWritten() as written:
            o, _ = rule(lengths, *inputs[:5])
            o.sum().backward()
        return written.total

    doubled = [2 * lengths[0]] + 2 * lengths[1:]
    assert work(doubled) == pytest.approx(2 * work(lengths), rel=0.05)


def test_between_the_passes_little_more_than_the_inputs_is_kept():
    """Chunk intermediates, kept by autograd, would be more than ten times the inputs."""
    lengths = [640, 64, 64, 64]
    inputs = make_inputs(lengths)
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x):
        rule(lengths, *inputs[:5])
    given = {x.data_ptr() for x in inputs}
    num_chunks, state = 13, VALUE_HEADS * KEY_DIM * VALUE_DIM
    assert sum(x.numel() for pointer, x in kept.items() if pointer not in given) <= num_chunks * state


def test_the_convolution_is_torchs_on_each_sequence_alone():
    lengths, width, channels = [1, 2, 3, 4, 5, 70, 1], 4, 6
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(lengths), channels, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(channels, width, generator=generator, dtype=torch.float64, requires_grad=True)
    ours = causal_conv(x, weight, torch.cat([torch.arange(n) for n in lengths]))
    padded = [F.pad(part.T, (width - 1, 0)) for part in x.split(lengths)]
    theirs = torch.cat([F.silu(F.conv1d(part, weight[:, None], groups=channels)).T for part in padded])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    d_o = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(ours, (x, weight), d_o), torch.autograd.grad(theirs, (x, weight), d_o)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_pack_shorter_than_the_filter_is_convolved_too():
    x, weight = torch.tensor([[2.0]]), torch.tensor([[5.0, 5.0, 5.0, 0.5]])
    assert torch.equal(causal_conv(x, weight, torch.tensor([0])), F.silu(torch.tensor([[1.0]])))


def test_a_segment_holds_more_chunks_of_small_heads_and_never_less_than_eight():
    assert gated_delta.segment_size("cpu", 4 * 2 * 128) == (32, 2, 8)
    assert gated_delta.segment_size("cpu", 4 * 2 * 32) == (32, 4, 16)
    assert gated_delta.segment_size("cpu", 64 * 2 * 128) == (32, 2, 8)
    assert gated_delta.segment_size("npu:0", 4 * 2 * 32) == (64, 64, 128)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_states_of_any_strides_give_the_same_final_states_and_gradients(order):
    """Initial states, and the gradient of the final ones, laid out in memory in every order of their four dimensions."""
    lengths = [40, 7, 33]
    *inputs, state = (x.detach() for x in make_inputs(lengths))
    d_final = torch.randn(state.shape, generator=torch.Generator().manual_seed(5))

    def final_and_gradient(layout) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = layout(state).requires_grad_()
        final = rule(lengths, *inputs, leaf)[1]
        return final.detach(), torch.autograd.grad(final, leaf, layout(d_final))[0]

    def permuted(x: torch.Tensor) -> torch.Tensor:
        return x.permute(order).contiguous().permute([order.index(i) for i in range(4)])

    for ours, right in zip(final_and_gradient(permuted), final_and_gradient(torch.clone)):
        torch.testing.assert_close(ours, right, rtol=0, atol=1e-6)
