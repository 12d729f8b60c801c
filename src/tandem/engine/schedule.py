"""Run a share of sequences through Megatron's pipeline schedule, forward or forward and backward."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from tandem.config.schema import Config
from tandem.data.packing import PackedBatch, pack, plan_micro_batches
from tandem.data.types import Sequence
from tandem.errors import UserError
from tandem.progress import Progress, unseen
from tandem.qwen3_5.layout import sequence_layout
from tandem.qwen3_5.model import ModelInput

# (batch, scores [2, T]) -> (loss summed over this micro-batch, what to report)
LossFunction = Callable[[PackedBatch, Tensor], tuple[Tensor, Any]]


def my_batches(sequences: list[Sequence], config: Config) -> list[PackedBatch]:
    """The micro-batches of this data-parallel rank; the same on all ranks of its model replica."""
    parallel, batch = config.parallel, config.batch
    align = 2 * parallel.cp if parallel.cp > 1 else 1
    padding: dict[str, Any] = {"align": align, "total_align": align * parallel.tp, "padded": not batch.packing}
    plan = plan_micro_batches(
        [s.num_tokens for s in sequences],
        parallel_state.get_data_parallel_world_size(),
        max_tokens=batch.max_tokens_per_device * parallel.cp,
        micro_batch_size=batch.micro_batch_size,
        multiple=parallel.pp if parallel.vpp else 1,
        **padding,
    )
    return [pack(sequences, indices, **padding) for indices in plan[parallel_state.get_data_parallel_rank()]]


def model_input(batch: PackedBatch, hf_config, device: str, *, temperature: float, banned: list[int], entropy_grad: bool) -> ModelInput:
    """Tensors on the device.

    Raises:
        UserError: a sequence holds video tokens, which the model could not place.
    """
    _check_vision_tokens(batch, hf_config)
    to = lambda x: None if x is None else torch.from_numpy(x).to(device)  # noqa: E731
    layout = sequence_layout(
        batch.cu_seqlens,
        torch.from_numpy(batch.position_ids),
        hf_config.text_config,
        cp_size=parallel_state.get_context_parallel_world_size(),
        cp_rank=parallel_state.get_context_parallel_rank(),
        device=device,
    )
    if batch.experts is not None:
        layout.experts = _my_rows(to(batch.experts), layout.local_L)
    return ModelInput(
        input_ids_T=to(batch.input_ids),
        target_T=to(batch.target),
        layout=layout,
        pixel_values=to(batch.pixel_values),
        image_grid_thw=to(batch.image_grid_thw),
        temperature=temperature,
        banned=torch.tensor(banned, dtype=torch.long, device=device),
        entropy_grad=entropy_grad,
    )


def _my_rows(values_T: Tensor, local_L: Tensor | None) -> Tensor:
    """Those of this context-parallel rank, and of these its tensor-parallel slice: a model with experts is sequence parallel."""
    rows = values_T if local_L is None else values_T[local_L]
    return rows.chunk(parallel_state.get_tensor_model_parallel_world_size())[parallel_state.get_tensor_model_parallel_rank()]


def _check_vision_tokens(batch: PackedBatch, hf_config) -> None:
    if (batch.input_ids == hf_config.video_token_id).any():
        raise UserError("a sequence holds video tokens", "only text and images can be trained on", "remove the rows with videos")
    grid, merge = batch.image_grid_thw, hf_config.vision_config.spatial_merge_size
    num_features = 0 if grid is None else int(grid.prod(-1).sum()) // merge**2
    assert int((batch.input_ids == hf_config.image_token_id).sum()) == num_features, "image tokens and image features differ in number"


def run(
    chunks: list[torch.nn.Module],
    hf_config,
    batches: list[PackedBatch],
    loss: LossFunction,
    device: str,
    *,
    forward_only: bool,
    progress: Progress = unseen,
    **scoring,
) -> list[Any]:
    """What `loss` reported for each micro-batch, on the last pipeline stage; an empty list elsewhere.

    Args:
        chunks: this rank's model chunks, wrapped for data parallelism or not.
        progress: told (done, total) of the forward passes of this rank's micro-batches.
        scoring: temperature, banned and entropy_grad of `model_input`.
    """

    def loss_func(batch: PackedBatch, scores: Tensor) -> tuple[Tensor, Tensor, Any]:
        total, report = loss(batch, scores)
        # Megatron divides the summed gradient by the sum of these over micro-batches, data- and context-parallel ranks.
        cp_rank = parallel_state.get_context_parallel_rank()
        num_tokens = len(batch.score_index) if cp_rank == 0 else 0
        return total, torch.tensor(num_tokens, dtype=torch.int, device=device), report

    num_done, num_passes = itertools.count(1), len(batches) * len(chunks)

    def forward_step(iterator, chunk):
        batch = next(iterator)
        output = chunk(model_input(batch, hf_config, device, **scoring))
        progress(next(num_done), num_passes)
        return output, partial(loss_func, batch)

    iterators = [iter(list(batches)) for _ in chunks]
    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iterators if len(chunks) > 1 else iterators[0],
        model=chunks,
        num_microbatches=len(batches),
        seq_length=max(len(b.input_ids) for b in batches),  # only a first guess: shapes travel with the tensors
        micro_batch_size=1,
        forward_only=forward_only,
    )
