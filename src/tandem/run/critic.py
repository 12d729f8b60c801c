"""The critic's part of a step: values before the update, the update of the critic, and what its log tells."""

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from tandem.algorithms import schedules
from tandem.algorithms.advantages import AdvantageBatch
from tandem.config.checks import has_critic
from tandem.config.schema import Config
from tandem.data.types import Sequence
from tandem.run.mini_batches import mini_batches, num_mini_batches
from tandem.run.run import Run
from tandem.run.samples import Sample


def policy_learns(config: Config, step: int) -> bool:
    """Whether the policy is updated in this step: not while the critic alone learns."""
    return not has_critic(config) or step > config.critic.warmup_steps


def add_values(run: Run, samples: Seq[Sample]) -> None:
    """Each sample's `values`: of the state in which each of its tokens was chosen, by the critic before the update."""
    for sample, values in zip(samples, run.trainers.values(sequences(samples))):
        sample.values = values
        sample.fields["old_values"] = values


def token_rewards(sample: Sample) -> np.ndarray:
    """[R] float64: what each token earns. The response's reward comes with the last; a KL penalty, if it is in the reward, with each."""
    rewards = np.zeros(sample.num_own) if sample.kl_rewards is None else sample.kl_rewards.astype(np.float64)
    if len(rewards):
        rewards[-1] += sample.reward - sample.kl_penalty
    return rewards


def sequences(samples: Seq[Sample]) -> list[Sequence]:
    """Without the experts that the generator chose: the critic has routers of its own."""
    return [replace(sample.sequence(), experts=None) for sample in samples]


def update_critic(run: Run, samples: list[Sample], step: int) -> dict[str, float]:
    """Optimizer steps of the critic over the mini-batches of the policy's. Reads the samples' `value_targets`. Returns mean metrics."""
    config = run.config
    lr = schedules.lr_at(config.critic.optimizer, step, run.total_steps)
    results, num_models = [], 1 + policy_learns(config, step)
    for number, batch in enumerate(mini_batches(samples, config)):
        run.track.part(number, num_models * num_mini_batches(samples, config))
        results.append(run.trainers.update_critic(sequences(batch), lr=lr))
    metrics = {name: float(np.mean([r[name] for r in results])) for name in results[0]}
    num_skipped = sum(r["critic/update_ok"] < 1 for r in results)
    return metrics | {"critic/lr": lr, "critic/num_skipped": num_skipped}


def value_metrics(samples: Seq[Sample], batch: AdvantageBatch) -> dict[str, float]:
    """Over all tokens: means of values and targets, and the share of the targets' variance that the values explain: 1 - Var(target - V) /
    Var(target); 0 says that a constant would do as well, 1 that every value is right. NaN where all targets are equal."""
    assert batch.values is not None
    values = np.concatenate(batch.values).astype(np.float64)
    targets = np.concatenate([sample.fields["value_targets"] for sample in samples]).astype(np.float64)
    variance = targets.var()
    return {
        "value/mean": float(values.mean()),
        "value/target_mean": float(targets.mean()),
        "value/explained_variance": 1 - float((targets - values).var() / variance) if variance > 0 else float("nan"),
    }
