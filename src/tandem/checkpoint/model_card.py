"""The README.md of an exported model: what it was made from and how, for whoever finds it."""

import json
from pathlib import Path
from typing import Any

from tandem.config.checkpointfolder import Checkpoint
from tandem.config.schema import Config
from tandem.track.metrics import read_metrics

CARD, START_CARD = "README.md", "README.start-model.md"
_TOLD = ("val/accuracy", "accuracy/mean", "reward/mean", "response_length/mean", "kl/ref", "entropy", "fidelity/logprob_abs_diff_mean")


def model_card(checkpoint: Checkpoint, config: Config, dtype: str = "") -> str:
    """Markdown. Files are told by name only: paths are nobody else's business.

    Args:
        dtype: that the weights were converted to; empty: none.
    """
    start, algorithm = _short(config.model.path), config.algorithm
    kl = f"{algorithm.kl.kind}, coefficient {algorithm.kl.coef:g}, in the {algorithm.kl.where}" if algorithm.kl.coef else "none"
    facts = {
        "start model": start,
        "steps": f"{checkpoint.step} of {checkpoint.state['total_steps']}",
        "algorithm": f"advantage {algorithm.advantage}, loss {algorithm.loss}",
        "KL to the start model": kl,
        "training rows": ", ".join(_short(file) for file in config.data.train_files) or "-",
        "prompts a step, samples each": f"{config.data.train_batch_size}, {config.rollout.n}",
        "reward": _short(config.reward.name),
        "learning rate": f"{config.optimizer.lr:g}, {config.optimizer.schedule}",
        "trained in": config.model.dtype,
        "weights stored in": f"{dtype}, converted" if dtype else "the start model's dtypes",
        "layout": ", ".join(f"{key} {value}" for key, value in config.parallel.model_dump().items() if value and key != "sp"),
        "seed": config.trainer.seed,
        "versions": ", ".join(f"{name} {version}" for name, version in checkpoint.state.get("versions", {}).items()),
    }
    measured = _measured(checkpoint)
    front = {
        "base_model": start,
        "library_name": "transformers",
        "pipeline_tag": "image-text-to-text",
        "tags": ["tandem", algorithm.advantage],
    }
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in front.items()), "---", ""]
    lines += [f"# {start} after {checkpoint.step} steps of reinforcement learning", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {str(value).replace('|', '/')} |" for name, value in facts.items()), ""]
    if measured:
        lines += ["Measured by the run, last values up to this step:", "", "| metric | value |", "|---|---|"]
        lines += [*(f"| {name} | {value:.4g} |" for name, value in measured.items()), ""]
    lines += ["Tensors outside the model proper, like those for multi-token prediction, are the start model's: they were not trained.", ""]
    return "\n".join(lines)


def _measured(checkpoint: Checkpoint) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in read_metrics(checkpoint.path.parent.parent):
        if (row.get("step") or 0) <= checkpoint.step:
            found |= {name: value for name in _TOLD if (value := row.get(name)) is not None}
    return {name: found[name] for name in _TOLD if name in found}


def _short(value: Any) -> str:
    """A hub's name as it is, the last part of a path."""
    text = str(value)
    return Path(text).name if Path(text).expanduser().is_absolute() or text.startswith((".", "~")) else text
