"""From a recipe's name to a configuration that can run here, before anything heavy is imported."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tandem.config.checks import check
from tandem.config.layout import check_layout
from tandem.config.load import load
from tandem.config.modelfolder import check_model
from tandem.config.preflight import Task, preflight
from tandem.config.schema import Config
from tandem.qwen3_5.tiny import layout_sizes


def prepare(
    recipe: str, overrides: Sequence[str] = (), task: Task = "train", dry_run: bool = False, env: Mapping[str, str] = os.environ
) -> Config:
    """Load, cross-check, also with the model, and, unless `dry_run`, name the run's folder and look at this machine. Raises UserError."""
    config = load(recipe, overrides, env)
    check(config)
    if config.prepare == "demo" and not config.model.path:
        text, vision = layout_sizes("demo")
        check_layout(text, config.parallel, vision)
    if dry_run:
        if config.model.path:
            check_model(config.model.path, config.parallel)
        return config
    from tandem.data.rows import check_files

    config = config.model_copy(update={"run_dir": config.run_dir or new_run_dir(config.recipe)})
    preflight(config, task, check_files)
    return config


def new_run_dir(recipe: str) -> str:
    """runs/<recipe>-<local time>, with a number behind when that exists."""
    name = f"runs/{recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(path for path in [name, *(f"{name}-{number}" for number in range(2, 1000))] if not Path(path).exists())
