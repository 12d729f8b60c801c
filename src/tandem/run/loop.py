"""One step of reinforcement learning, top to bottom, and the loop around it. Nothing of a step happens elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tandem.algorithms import advantages, aggregation, schedules
from tandem.config.checkpointfolder import Checkpoint
from tandem.rewards import combine
from tandem.rollout.types import SamplingParams
from tandem.run.ahead import Batch, check_versions
from tandem.run.fidelity import check_fidelity, check_reference, correct, fidelity
from tandem.run.generators import GeneratorsFailed
from tandem.run.metrics import Stopwatch, sample_metrics, throughput
from tandem.run.run import Run
from tandem.run.samples import Sample, samples_of


def train(run: Run, checkpoint: Checkpoint | None = None) -> None:
    """Steps until `trainer.total_steps` or epochs are done, or someone asked to stop; validates, saves and exports on the way.

    Args:
        checkpoint: where to go on; None: from the start.
    """
    trainer = run.config.trainer
    done = run.resume(checkpoint) if checkpoint else run.start()
    run.publish(version=done)
    if is_validated_after(run, done) and not run.track.was_validated(done):
        validate(run, done)
    with saved_if_generators_fail(run):
        for step in range(done + 1, run.total_steps + 1):
            run.track.step(one_step(run, step))
            last = step == run.total_steps or run.stop_requested
            if last or (trainer.save_freq and step % trainer.save_freq == 0):
                run.save(step)  # before the validation, which may outlast the grace time of a stop
            if run.stop_requested or is_validated_after(run, step):
                validate(run, step)
                run.prune()
            if last:
                break
    run.export()


def is_validated_after(run: Run, step: int) -> bool:
    """Whether the held-out rows are sampled once `step` steps are done: before and after training, and every `trainer.test_freq`."""
    trainer = run.config.trainer
    if step == 0:
        return trainer.val_before_train
    return step == run.total_steps or bool(trainer.test_freq and step % trainer.test_freq == 0)


def one_step(run: Run, step: int) -> dict[str, float]:
    """Prompts, rollout, reward, advantage, old and reference log-probs, update, publication. Returns the step's metrics."""
    config, algorithm = run.config, run.config.algorithm
    clock = Stopwatch(run.track)
    with clock("rollout"):
        batch = run.next_batch(step)
        staleness = check_versions(batch, run.version, config.rollout.max_staleness)
        samples = samples_of(batch.prompts, batch.completions)
    with clock("reward"):
        grade(run, samples)
        grade_greedy(run, batch, samples)
    add_advantages(run, samples)
    with clock("old_logprob"):
        old = [logprobs for logprobs, _ in run.trainers.scores([s.sequence() for s in samples], temperature=config.rollout.temperature)]
        for sample, logprobs in zip(samples, old):
            sample.fields["old_logprobs"] = logprobs
    metrics = {"staleness/mean": staleness} | fidelity(samples)
    if not staleness:  # what older weights have made differs by what was learned since
        check_fidelity(metrics, samples, config.fidelity)
    metrics |= correct(samples, algorithm.correction)
    if algorithm.old_logprobs == "rollout":
        for sample in samples:
            sample.fields["old_logprobs"] = sample.completion.logprobs
    if algorithm.kl.coef > 0:
        with clock("ref_logprob"):
            scored = run.trainers.scores([s.sequence() for s in samples], temperature=config.rollout.temperature, reference=True)
            for sample, (logprobs, _) in zip(samples, scored):
                sample.fields["ref_logprobs"] = logprobs
        if step == 1:
            check_reference(old, [s.fields["ref_logprobs"] for s in samples], config.fidelity)
    with clock("update"), run.changing_weights(step):
        lr = schedules.lr_at(config.optimizer, step, run.total_steps)
        metrics |= update(run, samples, lr, step)
    with clock("publish"):
        metrics |= run.publish(version=step)
    run.track.rollouts(step, [sample.row() for sample in samples])
    return {
        "step": step,
        "lr": lr,
        "version": run.version,
        **sample_metrics(samples),
        **metrics,
        **throughput(samples, clock),
        **run.trainers.memory(),
    }


@contextmanager
def saved_if_generators_fail(run: Run) -> Iterator[None]:
    """The trainers are well then, and their work is not lost."""
    try:
        yield
    except GeneratorsFailed:
        run.save(run.trained_version)
        raise


def grade(run: Run, samples: list[Sample]) -> None:
    """Accuracy and format of each sample, and the reward they add up to."""
    grades = run.graders.grade([(s.text, s.prompt.row.ground_truth) for s in samples], on_progress=run.track.progress("reward"))
    for sample, result in zip(samples, grades):
        sample.accuracy, sample.format, sample.reason = result.accuracy, result.format, result.reason
        sample.reward = combine(result, run.config.reward.format_weight)


def grade_greedy(run: Run, batch: Batch, samples: list[Sample]) -> None:
    """Each sample's `greedy_reward`: what the greedy response to its prompt earns, where the advantage needs one."""
    if batch.greedy:
        greedy = samples_of(batch.prompts, [[completion] for completion in batch.greedy])
        grade(run, greedy)
        for sample in samples:
            sample.greedy_reward = greedy[sample.group].reward


def add_advantages(run: Run, samples: list[Sample]) -> None:
    """Rewards compared within each prompt's group; every token of a sample gets the sample's advantage."""
    estimate = advantages.get(run.config.algorithm.advantage)
    batch = advantages.AdvantageBatch(
        rewards_B=np.array([s.reward for s in samples]),
        groups_B=np.array([s.group for s in samples]),
        lengths_B=np.array([len(s.completion.token_ids) for s in samples]),
        greedy_rewards_B=np.array([s.greedy_reward for s in samples]),
    )
    for sample, advantage in zip(samples, estimate(batch, run.config.algorithm)):
        sample.advantage = float(advantage)
        sample.fields["advantages"] = np.full(len(sample.completion.token_ids), advantage, np.float32)


def update(run: Run, samples: list[Sample], lr: float, step: int) -> dict[str, float]:
    """Optimizer steps over the samples: one for each mini-batch of prompts and pass. Returns their mean metrics."""
    config = run.config
    per_mini_batch = (config.batch.mini_batch_size or config.data.train_batch_size) * config.rollout.n
    results = []
    for _ in range(config.batch.num_epochs):
        for start in range(0, len(samples), per_mini_batch):
            batch = samples[start : start + per_mini_batch]
            lengths = np.array([len(s.completion.token_ids) for s in batch])
            for sample, weight in zip(
                batch, aggregation.token_weights(lengths, config.algorithm.aggregation, config.data.max_response_length)
            ):
                sample.fields["weights"] = np.full(len(sample.completion.token_ids), weight, np.float32)
            results.append(run.trainers.update([s.sequence() for s in batch], lr=lr))
    return {name: float(np.mean([r[name] for r in results])) for name in results[0]}


def sample_held_out(run: Run) -> list[Sample]:
    """`rollout.val_n` graded samples of each held-out row, with the same seeds every time."""
    config = run.config
    sampling = SamplingParams(
        config.rollout.val_n, config.rollout.val_temperature, max_tokens=config.data.max_response_length, seed=config.trainer.seed
    )
    samples = samples_of(run.val_prompts, run.generators.generate(run.val_prompts, sampling))
    grade(run, samples)
    return samples


def validate(run: Run, step: int) -> None:
    """Sampled accuracy on the held-out rows, recorded under this step; nothing without such rows."""
    if run.val_prompts:
        with run.track.phase("validation"):
            run.track.validation(step, sample_held_out(run))
