"""From a recipe's name to a configuration that can run here, before anything heavy is imported."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tandem import devices
from tandem.algorithms.names import check_names as check_algorithm_names
from tandem.config.checks import check
from tandem.config.layout import check_layout
from tandem.config.load import load
from tandem.config.modelfolder import check_config, check_model
from tandem.config.preflight import Task, preflight
from tandem.config.schema import Config
from tandem.qwen3_5.tiny import layout_sizes
from tandem.rewards import check_names
from tandem.track import profiles
from tandem.track.trackers import check_installed


def prepare(
    recipe: str, overrides: Sequence[str] = (), task: Task = "train", dry_run: bool = False, env: Mapping[str, str] = os.environ
) -> Config:
    """Load, cross-check, also with the model, and, unless `dry_run`, name the run's folder and look at this machine. Raises UserError."""
    config = load(recipe, overrides, env, lambda: devices.find()[0].NAME)
    check(config)
    check_algorithm_names(config.algorithm)
    check_names(config.reward.name, config.reward.also)
    if config.prepare == "demo" and not config.model.path:
        text, vision = layout_sizes("demo")
        check_layout(text, config.parallel, vision)
    if dry_run:
        if config.model.path and Path(config.model.path).expanduser().exists():  # else it may lie on the machine that will run
            check_model(config.model.path, config.parallel, config.rollout.router_replay)
        return config
    check_installed(config.trainer.trackers)
    if config.trainer.profile.steps and config.trainer.profile.timeline:
        profiles.check_installed()
    if config.device != "auto":
        devices.detect(config.device)
    from tandem.data.rows import check_files

    config = config.model_copy(update={"run_dir": config.run_dir or new_run_dir(config)})
    if config.prepare == "geo3k":
        from tandem.data.geo3k import fetch_missing

        fetch_missing([*config.data.train_files, *config.data.val_files], _say)
    preflight(config, task, partial(check_files, data=config.data))
    check_hub_model(config)
    return config


def check_hub_model(config: Config) -> None:
    """Look at the config of a model on the hub, a small file, before the cluster starts. Raises UserError as `check_model` does."""
    if not config.model.path or Path(config.model.path).expanduser().exists():
        return
    from tandem.data.hub import fetch

    folder = fetch(config.model.path, "model", ("config.json",))
    check_config(folder, config.parallel, config.rollout.router_replay)


def _say(line: str) -> None:
    sys.stderr.write(f"tandem: {line}\n")


def new_run_dir(config: Config) -> str:
    """runs/<project>/<experiment or recipe>-<local time>, with a number behind when that exists; without a project one folder less."""
    trainer = config.trainer
    names = [part for part in ("runs", trainer.project_name, trainer.experiment_name or config.recipe) if part]
    name = f"{'/'.join(names)}-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(path for path in [name, *(f"{name}-{number}" for number in range(2, 1000))] if not Path(path).exists())
