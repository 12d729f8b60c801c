"""What the forked ranks of `test_critic.py` run. Imported in rank processes, never by pytest itself."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tandem.config.schema import ParallelConfig
from tandem.data.types import Sequence
from tandem.engine import checkpoint
from tests.engine.ranks import make_engine
from tests.plan.live import storage_bytes
from tests.plan.ranks import optimizer_tensors

OPTIMIZER = {"eps": 1e-4, "betas": (0.9, 0.95), "clip_grad": 1.0}


def learn_values(
    model_path: str, parallel: ParallelConfig, sequences: list[Sequence], folder: str, num_steps: int, lr: float, **sections
) -> dict[str, Any]:
    """A critic of the policy: values with a head that says 0, and with one that does not; updates; a checkpoint, and the steps after it.

    Also the policy's log-probs before and after, and its tensors' sum: nothing of the critic's may reach them.
    """
    policy = make_engine(model_path, parallel, critic={"optimizer": OPTIMIZER, "clip": 0.5}, **sections)
    before = policy.scores(sequences, temperature=1.0, masked=False)
    critic = policy.critic()
    critic.start_optimizer(lr=lr, weight_decay=0.0)
    zeros = critic.scores(sequences, temperature=1.0, masked=False)
    for chunk in critic.chunks:
        if chunk.post_process:
            chunk.value_head.weight.data.copy_(head(chunk.value_head.weight.size(1)))
            chunk.value_head.bias.data.fill_(0.25)
    critic.optimizer.reload_model_params()
    values = critic.scores(sequences, temperature=1.0, masked=False)
    steps = [critic.update(sequences, lr=lr) for _ in range(num_steps)]
    parameters = list(critic._parameters())
    weights, gradients = [p.data for p in parameters], [p.main_grad for p in parameters]
    ours = {x.untyped_storage().data_ptr() for x in weights}
    held = {
        "weights": storage_bytes(weights),
        "gradients": storage_bytes(gradients),
        "optimizer": storage_bytes([x for x in optimizer_tensors(critic.optimizer) if x.untyped_storage().data_ptr() not in ours]),
    }
    checkpoint.save(critic, Path(folder))
    after = critic.scores(sequences, temperature=1.0, masked=False)
    gone_on = critic.update(sequences, lr=lr)
    checkpoint.load(critic, Path(folder))
    loaded = critic.scores(sequences, temperature=1.0, masked=False)
    again = critic.update(sequences, lr=lr)
    untouched = policy.scores(sequences, temperature=1.0, masked=False)
    return {
        "zeros": zeros, "values": values, "steps": steps, "after": after, "loaded": loaded, "gone_on": gone_on, "again": again,
        "held": held, "rank": torch.distributed.get_rank(),
        "policy_equal": all(np.array_equal(before[i][0], untouched[i][0]) for i in before),
    }  # fmt: skip


def head(hidden_size: int) -> torch.Tensor:
    """[1, hidden] of a value head that has learned something."""
    return torch.sin(torch.arange(hidden_size, dtype=torch.float32))[None] / 4
