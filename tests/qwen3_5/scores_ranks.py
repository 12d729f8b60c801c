"""What the forked ranks of test_scores.py run."""

import torch

from tandem.config.schema import ParallelConfig

NUM_TOKENS, HIDDEN, VOCAB = 11, 8, 40
BANNED = [3, 21, 39]


def make_inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, the whole output weight, targets, and a gradient of the scores."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(NUM_TOKENS, HIDDEN, generator=generator).to(dtype)
    weight = 2 * torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype)
    target = torch.tensor([0, 19, 20, 38, 5, 22, 1, 2, 30, 37, 20])  # the edges of both halves, none of them banned
    return hidden, weight, target, torch.randn(2, NUM_TOKENS, generator=generator)


def scores_and_gradients(parallel: ParallelConfig, chunk: int, temperature: float, entropy_grad: bool, dtype: str = "float32") -> dict:
    from megatron.core import parallel_state

    from tandem.qwen3_5.scores import token_scores

    group = parallel_state.get_tensor_model_parallel_group()
    hidden, weight, target, d_scores = make_inputs(getattr(torch, dtype))
    hidden.requires_grad_()
    mine = weight.chunk(group.size())[group.rank()].clone().requires_grad_()
    settings = {"temperature": temperature, "banned": torch.tensor(BANNED), "entropy_grad": entropy_grad, "chunk": chunk}
    scores = token_scores(hidden, mine, target, tp_group=group, **settings)
    d_hidden, d_weight = torch.autograd.grad(scores, (hidden, mine), d_scores)
    return {name: x.detach().float().numpy() for name, x in {"scores": scores, "d_hidden": d_hidden, "d_weight": d_weight}.items()}


def largest_tensor(parallel: ParallelConfig, chunk: int) -> int:
    """Elements of the largest tensor that forward and backward make; the weight, its transpose and its gradient left out."""
    from megatron.core import parallel_state
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from tandem.qwen3_5.scores import token_scores

    sizes = set()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.update(x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor))
            return result

    hidden, weight = torch.randn(64, 4, requires_grad=True), torch.randn(4096, 4, requires_grad=True)
    with Recorder():
        group = parallel_state.get_tensor_model_parallel_group()
        token_scores(hidden, weight, torch.arange(64), tp_group=group, entropy_grad=True, chunk=chunk).sum().backward()
    sizes.discard(weight.numel())
    return max(sizes)


def weight_gradient_errors(parallel: ParallelConfig, chunks: list[int]) -> list[float]:
    """Of the bf16 weight's gradient against the definition in float64, relative, all tokens pulling the same way; for each chunk size."""
    from megatron.core import parallel_state

    from tandem.qwen3_5.scores import token_scores

    generator, errors = torch.Generator().manual_seed(0), []
    hidden, weight = torch.rand(2048, 16, generator=generator).bfloat16(), torch.randn(64, 16, generator=generator).bfloat16()
    target = torch.zeros(len(hidden), dtype=torch.long)
    exact = weight.double().requires_grad_()
    (hidden.double() @ exact.t()).log_softmax(-1)[:, 0].sum().backward()
    for chunk in chunks:
        ours = weight.clone().requires_grad_()
        token_scores(hidden, ours, target, tp_group=parallel_state.get_tensor_model_parallel_group(), chunk=chunk)[0].sum().backward()
        errors.append(float((ours.grad.double() - exact.grad).norm() / exact.grad.norm()))
    return errors
