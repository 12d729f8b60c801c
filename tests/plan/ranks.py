"""What the forked ranks of the plan's tests and benchmark run: one update, its tensors counted."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from tandem.config.schema import ParallelConfig
from tandem.data.types import Sequence
from tandem.engine import schedule
from tests.engine.ranks import make_engine
from tests.plan.live import LiveBytes, storage_bytes


def optimizer_tensors(optimizer) -> Iterator[Tensor]:
    """The fp32 weights that are updated, and their moments and step counts."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in part.optimizer.param_groups:
            yield from group["params"]
        for state in part.optimizer.state.values():
            yield from state.values()


def measure_update(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], **sections) -> dict[str, Any]:
    """Bytes of weights, gradients, optimizer, of what is kept for the backward pass at most, and of all tensors at most.

    `batches`: (lengths, image tokens, images) of this rank's micro-batches.
    """
    engine = make_engine(model_path, parallel, **sections)
    engine.start_optimizer(lr=1e-3, weight_decay=0.0)
    engine.update(sequences, supervised=True, lr=1e-3)  # what the first step makes and keeps is there from now on
    parameters = list(engine._parameters())
    weights = [x.data for x in parameters]
    gradients = [x.main_grad for x in parameters if x.requires_grad]
    ours = {x.untyped_storage().data_ptr() for x in weights}
    optimizer = [x for x in optimizer_tensors(engine.optimizer) if x.untyped_storage().data_ptr() not in ours]
    states = storage_bytes(weights + gradients + optimizer)
    buffers = [x for chunk in engine.chunks for x in chunk.buffers()]
    kept = [0]
    with LiveBytes([*weights, *gradients, *optimizer, *buffers]) as live:
        for chunk in engine.chunks:
            chunk.register_forward_hook(lambda *_: kept.append(live.now))
        engine.update(sequences, supervised=True, lr=1e-3)
    token = engine.hf_config.image_token_id
    batches = [
        (tuple(np.diff(b.cu_seqlens).tolist()), int((b.input_ids == token).sum()), 0 if b.image_grid_thw is None else len(b.image_grid_thw))
        for b in schedule.my_batches(sequences, engine.config)
    ]
    return {
        "batches": batches,
        "weights": storage_bytes(weights),
        "gradients": storage_bytes(gradients),
        "optimizer": storage_bytes(optimizer),
        "activations": max(kept),
        "peak": states + live.peak,
    }
