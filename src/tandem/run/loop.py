"""One step of reinforcement learning, top to bottom, and the loop around it. The details are in the files that it calls by name."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tandem.actors.generator_group import GeneratorsFailed
from tandem.algorithms import advantages, kl, schedules
from tandem.algorithms.advantages.gae import value_targets
from tandem.config.checkpointfolder import Checkpoint
from tandem.config.checks import has_critic
from tandem.data.types import Sequence
from tandem.errors import RunError
from tandem.rollout.types import SamplingParams
from tandem.run import passes
from tandem.run.collect import collect, grade
from tandem.run.critic import add_values, policy_learns, token_rewards, update_critic, value_metrics
from tandem.run.estimate import validation_metrics
from tandem.run.fidelity import check_fidelity, check_reference, correct, fidelity, of_update
from tandem.run.metrics import Stopwatch, sample_metrics, throughput
from tandem.run.mfu import mfu
from tandem.run.mini_batches import mini_batches, num_mini_batches
from tandem.run.penalty import take_kl_from_rewards
from tandem.run.profile import profiled
from tandem.run.run import Run
from tandem.run.samples import Sample, samples_of


def train(run: Run, checkpoint: Checkpoint | None = None) -> None:
    """Steps until `trainer.total_steps` or epochs are done; validates, saves and exports on the way. Asked to stop it saves and leaves the
    rest to the run that goes on from there, so that both together do what one would have done.

    Args:
        checkpoint: where to go on; None: from the start.
    """
    trainer = run.config.trainer
    done = run.resume(checkpoint) if checkpoint else run.start()
    for line in passes.notes(run.config):
        run.track.note(line)
    with run.track.phase("publish"):
        run.publish(version=done)
    if is_validated_after(run, done) and not run.track.was_validated(done):
        validate(run, done)
    with saved_if_generators_fail(run):
        for step in range(done + 1, run.total_steps + 1):
            with profiled(run, step):
                metrics = one_step(run, step)
            run.track.step(metrics)
            stop_if_nothing_is_learned(run, step)
            run.settle_save(wait=False)
            saved = step == run.total_steps or bool(trainer.save_freq and step % trainer.save_freq == 0)
            if saved:
                run.save(step)
            if is_validated_after(run, step) and not run.stop_requested:
                validate(run, step)
                run.prune()
            if run.stop_requested:
                run.settle_save() if saved else run.save(step, wait=True)
                return
    run.settle_save()
    run.export(run.trained_version)


def is_validated_after(run: Run, step: int) -> bool:
    """Whether the held-out rows are sampled once `step` steps are done: before and after training, and every `trainer.test_freq`."""
    trainer = run.config.trainer
    if step == 0:
        return trainer.val_before_train
    return step == run.total_steps or bool(trainer.test_freq and step % trainer.test_freq == 0)


def one_step(run: Run, step: int) -> dict[str, float]:
    """Prompts, rollout, reward, old and reference log-probs, advantage, update, publication. Returns the step's metrics."""
    config, algorithm = run.config, run.config.algorithm
    clock = Stopwatch(run.track)
    samples, metrics = collect(run, step, clock)
    scored = bool(passes.why_old_logprobs(config, step))
    if scored:
        with clock("old_logprob"):
            for sample, (logprobs, _) in zip(samples, run.trainers.scores(sequences(samples), temperature=config.rollout.temperature)):
                sample.trainer_logprobs = logprobs
        metrics |= fidelity(samples)
        if not metrics["staleness/mean"]:  # what older weights have made differs by what was learned since
            check_fidelity(metrics, samples, config.fidelity)
    for sample in samples:
        sample.fields["old_logprobs"] = sample.completion.logprobs if algorithm.old_logprobs == "rollout" else sample.trainer_logprobs
    if algorithm.kl.coef > 0:
        with clock("ref_logprob"):
            reference = run.trainers.scores(sequences(samples), temperature=config.rollout.temperature, reference=True)
            for sample, (logprobs, _) in zip(samples, reference):
                sample.fields["ref_logprobs"] = logprobs
        if step == 1 and scored:
            check_reference([s.trainer_logprobs for s in samples], [s.fields["ref_logprobs"] for s in samples], config.fidelity)
        if algorithm.kl.where == "reward":
            metrics |= take_kl_from_rewards(samples, run.algorithm_state.kl_coef, algorithm.kl.kind)
    if has_critic(config):
        with clock("values"):
            add_values(run, samples)
    metrics |= add_advantages(run, samples)
    metrics |= correct(samples, algorithm.correction)
    with clock("update"), run.changing_weights(step):
        lr = 0.0
        if has_critic(config):
            metrics |= update_critic(run, samples, step)
        if policy_learns(config, step):
            lr = schedules.lr_at(config.optimizer, step, run.total_steps)
            metrics |= update(run, samples, lr)
    if not scored:
        metrics |= of_update(metrics)
        if not metrics["staleness/mean"]:
            check_fidelity(metrics, samples, config.fidelity)
    if algorithm.kl.coef > 0:
        metrics["kl/coef"] = run.algorithm_state.kl_coef
        run.algorithm_state.kl_coef = kl.adapted(metrics["kl/coef"], metrics.get("kl/ref", math.nan), len(samples), algorithm.kl)
    with clock("publish"):
        metrics |= run.publish(version=step)
    run.record(step, samples)
    return {
        "step": step,
        "lr": lr,
        "version": run.version,
        **sample_metrics(samples),
        **metrics,
        **throughput(samples, clock),
        **mfu(config, sequences(samples), step, seconds=clock.seconds["update"], peak_flops=run.peak_flops),
        **run.trainers.memory(),
    }


def sequences(samples: list[Sample]) -> list[Sequence]:
    """What the trainers score and train on."""
    return [sample.sequence() for sample in samples]


@contextmanager
def saved_if_generators_fail(run: Run) -> Iterator[None]:
    """The trainers are well then, and their work is not lost."""
    try:
        yield
    except GeneratorsFailed:
        run.save(run.trained_version, wait=True)
        raise


def stop_if_nothing_is_learned(run: Run, step: int) -> None:
    """Saves and raises RunError once `optimizer.max_skipped_steps` steps in a row were skipped: the weights are still those before them."""
    limit, state = run.config.optimizer.max_skipped_steps, run.algorithm_state
    if limit and state.num_skipped_in_a_row >= limit:
        path = run.save(step, wait=True)
        raise RunError(
            f"the gradients of {state.num_skipped_in_a_row} optimizer steps in a row were not finite",
            f"none of these steps was taken; optimizer.max_skipped_steps = {limit}. The weights before them are in {path}",
            "lower optimizer.lr, or look for the first such step in metrics.jsonl (update/num_skipped) and at its rollouts",
        )


def add_advantages(run: Run, samples: list[Sample]) -> dict[str, float]:
    """Rewards compared within each prompt's group, and every token of a sample gets the sample's advantage; or, with a critic, each token
    its own. Returns metrics of the critic, if there is one."""
    estimate, with_critic = advantages.get(run.config.algorithm.advantage), has_critic(run.config)
    batch = advantages.AdvantageBatch(
        rewards_B=np.array([s.reward for s in samples]),
        groups_B=np.array([s.group for s in samples]),
        lengths_B=np.array([s.num_own for s in samples]),
        greedy_rewards_B=np.array([s.greedy_reward for s in samples]),
        token_rewards=[token_rewards(s) for s in samples] if with_critic else None,
        values=[s.values for s in samples if s.values is not None] if with_critic else None,
    )
    for sample, advantage in zip(samples, estimate(batch, run.config.algorithm)):
        sample.advantage = float(np.mean(advantage)) if np.size(advantage) else 0.0
        sample.fields["advantages"] = np.full(sample.num_own, advantage, np.float32)
    if not with_critic:
        return {}
    for sample, targets in zip(samples, value_targets(batch, run.config.algorithm)):
        sample.fields["value_targets"] = targets.astype(np.float32)
    return value_metrics(samples, batch)


def update(run: Run, samples: list[Sample], lr: float) -> dict[str, float]:
    """Optimizer steps over the samples: one for each mini-batch of prompts and pass. Returns their mean metrics.

    A step whose gradients are not finite is skipped, and counted.
    """
    state, results = run.algorithm_state, []
    count, critics = num_mini_batches(samples, run.config), int(has_critic(run.config))
    for number, batch in enumerate(mini_batches(samples, run.config)):
        run.track.part(critics * count + number, (1 + critics) * count)
        results.append(run.trainers.update(sequences(batch), lr=lr, kl_coef=state.kl_coef))
        state.count(taken=results[-1]["update_ok"] == 1.0)
    metrics = {name: float(np.mean([r[name] for r in results])) for name in results[0]}
    metrics |= {"update/num_skipped": sum(r["update_ok"] < 1 for r in results), "update/num_skipped_in_all": state.num_skipped}
    return metrics


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
            samples = sample_held_out(run)
            run.track.validation(step, samples, validation_metrics(samples))
