"""Make the parts of a run, in the order that finds mistakes early: data, seats, training ranks, generators, graders."""

from pathlib import Path
from typing import Any

from tandem.actors import cluster
from tandem.actors.generator_group import GeneratorGroup
from tandem.actors.train_group import TrainGroup
from tandem.config.schema import Config, RewardConfig
from tandem.data.assets import with_assets
from tandem.rewards import parse_also
from tandem.rewards.pool import RewardPool
from tandem.run.run import Run
from tandem.run.tracker import Tracker


def assemble(config: Config, device, task: str, run_dir: Path, track: Tracker, controller: Any | None = None) -> Run:
    """A `Run` with what `task` needs: eval and rollout-only have no trainers, sft and train-only no generators, sft no graders.

    Args:
        controller: this actor, where it is one: training ranks tell it how far they are.
    """
    given, config = config, with_assets(config, track.phase)
    run = Run(config, run_dir, track)
    run.given = given
    has_trainers, has_generators = task not in ("eval", "rollout-only"), task not in ("sft", "train-only")
    seats = cluster.seats(config, device, trainers=has_trainers, generators=has_generators, timeout_s=60)
    if has_trainers:  # the processes start while the prompts are made
        run.trainers = TrainGroup(config, seats.trainers, str(run_dir), controller)
    if has_generators:
        with track.phase("starting the processes"):
            places = run.trainers.places() if has_trainers else []
        visible = [cluster.visible_devices(config, places, ranks) for ranks in seats.shared]
        run.generators = GeneratorGroup(config, seats.generators, visible, str(run_dir), track.note, track.advanced)
        if has_trainers:
            run.generators.catch_up = run.catch_up
    if task != "sft":
        run.graders = graders(config.reward)
    run.prepare_prompts(train=task != "eval", validation=task != "rollout-only")
    if task == "train-only":
        run.replay()
    banned, stop = run.builder.banned_token_ids(), run.builder.stop_token_ids()
    if task != "sft":
        with track.phase("starting the graders"):
            run.graders.wait_until_ready()  # a grader that cannot be loaded is told before a model is
    if has_trainers:
        with track.phase("starting the training ranks"):
            run.trainers.start(run.model_path, banned)
            run.check_shared_folder()
            run.peak_flops = config.trainer.device_peak_flops or run.trainers.peak_flops()
            run.trainers.offload(parameters=True)  # a generator on the same devices takes its whole share of them when it starts
    if has_generators:
        with track.phase("starting the generators"):
            run.generators.start(run.model_path, banned, stop)
        if has_trainers:
            run.generators.sleep()  # until the first publication
    return run


def graders(reward: RewardConfig) -> RewardPool:
    return RewardPool(
        reward.name,
        reward.num_workers,
        reward.timeout_s,
        also=[*parse_also(reward.also)],
        batch_size=reward.batch_size,
        memory_limit_bytes=reward.memory_limit_bytes,
    )
