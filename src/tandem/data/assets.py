"""What a recipe makes for itself or fetches before anything is loaded: the demo's data and model, a model from the hub."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tandem.config.folders import cache_dir
from tandem.config.schema import Config
from tandem.data import hub


def with_assets(config: Config, phase: Callable[[str], AbstractContextManager]) -> Config:
    """The config with the paths of what the recipe makes for itself, or of the model fetched from the hub. Args: phase: shows the work."""
    if config.prepare == "demo":
        from tandem.data.demo.assets import prepare_demo

        with phase("making the demo's data and model"):
            made = prepare_demo(cache_dir() / f"demo-{config.trainer.seed}", config.trainer.seed)
        updates = {
            "model": config.model.model_copy(update={"path": config.model.path or made.model_path}),
            "data": config.data.model_copy(
                update={"train_files": config.data.train_files or made.train_files, "val_files": config.data.val_files or made.test_files}
            ),
            "warm_start": config.warm_start.model_copy(update={"val_files": config.warm_start.val_files or made.val_files}),
        }
        config = config.model_copy(update=updates)
    if not Path(config.model.path).expanduser().is_dir():
        with phase(f"fetching {config.model.path}, MB") as progress:
            path = str(hub.fetch(config.model.path, "model", hub.MODEL_FILES, progress=progress))
            return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})
    return config
