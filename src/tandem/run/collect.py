"""The samples of a step: generated, graded, and with `algorithm.dynamic_sampling` refilled until enough prompts teach something."""

from collections.abc import Iterable

import numpy as np

from tandem.algorithms.overlong import overlong_penalty
from tandem.rewards import Item, combine, parse_also
from tandem.run.ahead import Batch, check_versions
from tandem.run.metrics import Stopwatch
from tandem.run.run import Run
from tandem.run.samples import Sample, samples_of


def collect(run: Run, step: int, clock: Stopwatch) -> tuple[list[Sample], dict[str, float]]:
    """`data.train_batch_size` groups of graded samples, and metrics.

    Dynamic sampling (DAPO, Yu et al., 2025, arXiv 2503.14476, section 3.2) leaves out groups whose samples all earn the same: their
    advantages are 0. It draws up to `algorithm.dynamic_sampling` further batches; groups left out fill a batch that is still not full.
    """
    config = run.config
    wanted, num_further = config.data.train_batch_size, config.algorithm.dynamic_sampling
    drawn: list[list[Sample]] = []
    staleness = []
    for _ in range(1 + num_further):
        with clock("rollout"):
            batch = run.next_batch(step)
            staleness.append(check_versions(batch, run.version, run.max_staleness))
        samples = samples_of(batch.prompts, batch.completions)
        with clock("reward"):
            grade(run, samples)
            grade_greedy(run, batch, samples)
        drawn += groups_of(samples)
        if sum(map(is_mixed, drawn)) >= wanted:
            break
    if run.takes_turns:
        run.generators.sleep()
    metrics = {"staleness/mean": sum(staleness) / len(staleness)}
    if not num_further:
        return [sample for group in drawn for sample in group], metrics
    mixed = [group for group in drawn if is_mixed(group)]
    equal = [group for group in drawn if not is_mixed(group)]
    metrics |= {
        "dynamic_sampling/num_batches": len(staleness),
        "dynamic_sampling/num_equal": len(equal),
        "dynamic_sampling/num_filled": max(0, wanted - len(mixed)),
        "dynamic_sampling/num_surplus": max(0, len(mixed) - wanted),
        "dynamic_sampling/accuracy_drawn": float(np.mean([sample.accuracy for group in drawn for sample in group])),
    }
    return renumbered((mixed + equal)[:wanted]), metrics


def groups_of(samples: Iterable[Sample]) -> list[list[Sample]]:
    """The samples by group, in order."""
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return list(groups.values())


def is_mixed(group: list[Sample]) -> bool:
    """Whether its samples earn different rewards."""
    return any(sample.reward != group[0].reward for sample in group)


def renumbered(groups: list[list[Sample]]) -> list[Sample]:
    """Flat; the groups of several batches get numbers of their own."""
    for number, group in enumerate(groups):
        for sample in group:
            sample.group = number
    return [sample for group in groups for sample in group]


def grade(run: Run, samples: list[Sample]) -> None:
    """Accuracy and format of each sample, and the reward they add up to, less what its length costs."""
    reward, longest = run.config.reward, run.config.data.max_response_length
    weights = parse_also(reward.also)
    items = [Item(s.text, s.prompt.row.ground_truth, s.prompt.row.data_source, _question(s), s.prompt.row.extra_info) for s in samples]
    for sample, result in zip(samples, run.graders.grade(items, on_progress=run.track.progress("reward"))):
        sample.accuracy, sample.format, sample.reason, sample.also = result.accuracy, result.format, result.reason, result.also
        sample.answer = result.answer
        sample.length_penalty = reward.overlong_factor * overlong_penalty(len(sample.completion.token_ids), longest, reward.overlong_buffer)
        sample.reward = combine(result, reward.format_weight, weights) + sample.length_penalty
        if sample.completion.score is not None:
            sample.also = sample.also | {"environment": sample.completion.score}
            sample.reward += sample.completion.score


def _question(sample: Sample) -> str:
    return sample.prompt.row.messages[-1]["content"]


def grade_greedy(run: Run, batch: Batch, samples: list[Sample]) -> None:
    """Each sample's `greedy_reward`: what the greedy response to its prompt earns, where the advantage needs one."""
    if batch.greedy:
        greedy = samples_of(batch.prompts, [[completion] for completion in batch.greedy])
        grade(run, greedy)
        for sample in samples:
            sample.greedy_reward = greedy[sample.group].reward
