"""Run the layout and one process side by side on the same stand-in, and compare."""

import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandem.config.checks import world_size
from tandem.config.schema import Config, ParallelConfig
from tandem.engine.fork_ranks import fork_each
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tandem.rehearse.rank import Held, RankResult
from tandem.rehearse.standin import make_sequences, stand_in, write_stand_in

MAX_LOGPROB_DIFF, MAX_LOSS_DIFF = 1e-4, 1e-5


@dataclass(frozen=True)
class Rehearsal:
    """`faults` is empty when the layout does what one process does."""

    ranks: list[Held]
    max_abs_logprob_diff: float
    loss_rel_diff: float
    grad_norm_rel_diff: float
    seconds: float
    faults: list[str]


def rehearse(config: Config, *, dense: bool = False, timeout_s: float = 1800) -> Rehearsal:
    """Args: dense: the recipe's model has no experts.

    Raises:
        RunError: a rank failed; its traceback is in the message.
    """
    began = time.monotonic()
    settings = {
        "trainer": {"recompute": config.trainer.recompute},
        "batch": {"packing": config.batch.packing, "max_tokens_per_device": 200},
        "model": {"dtype": "float32", "freeze_vision": config.model.freeze_vision},
        "optimizer": {"clip_grad": config.optimizer.clip_grad},
    }
    with tempfile.TemporaryDirectory(prefix="tandem-rehearsal-") as temporary:
        folder = Path(temporary)
        model = write_stand_in(folder / "model", stand_in(config.parallel, dense))
        calls = []
        for name, parallel, world in (("alone", ParallelConfig(), 1), ("layout", config.parallel, world_size(config))):
            (folder / name).mkdir()
            given = {"model_path": str(model), "sequences": make_sequences(model), "folder": str(folder / name), "settings": settings}
            calls.append(("tandem.rehearse.rank:rehearse_rank", parallel, world, given))
        alone, ranks = fork_each(calls, timeout_s=timeout_s)
        names = HuggingFaceFolder(model).names()
    return _compared(alone[0], ranks, names, time.monotonic() - began)


def _compared(alone: RankResult, ranks: list[RankResult], names: set[str], seconds: float) -> Rehearsal:
    scores = {index: logprobs for rank in ranks for index, logprobs in rank.scores.items()}
    faults = []
    if scores.keys() != alone.scores.keys():
        faults.append(f"{len(scores)} of {len(alone.scores)} sequences were scored")
    logprob = max((float(np.abs(scores[index] - alone.scores[index]).max()) for index in scores), default=float("nan"))
    loss = abs(sum(rank.loss for rank in ranks) - alone.loss) / abs(alone.loss)
    norm = max(abs(rank.grad_norm - alone.grad_norm) for rank in ranks) / alone.grad_norm
    if not logprob <= MAX_LOGPROB_DIFF:
        faults.append(f"log-probs differ from one process by {logprob:.1e}")
    if not loss <= MAX_LOSS_DIFF:
        faults.append(f"the loss differs from one process by {loss:.1e}, relative")
    if not norm <= 1e-3:
        faults.append(f"the gradient norm differs from one process by {norm:.1e}, relative")
    if forgot := [rank.held.rank for rank in ranks if not rank.reloaded_equal]:
        faults.append(f"ranks {forgot} score otherwise after reading their checkpoint")
    published = Counter(name for rank in ranks for name in rank.held.published)
    if wrong := sorted((names ^ published.keys()) | {name for name, count in published.items() if count > 1}):
        faults.append(f"{len(wrong)} tensors are not published exactly once: {wrong[0]}, ...")
    return Rehearsal([rank.held for rank in ranks], logprob, loss, norm, seconds, faults)
