"""Trackers: services and programs that draw curves, each behind `start(run) -> Started`. One file a tracker, imported when it is asked for.

Metrics and settings go there; samples and pictures stay in the run's folder.
"""

import importlib.util
from collections.abc import Sequence

from tandem.errors import UserError

PACKAGES = {  # tracker, and file beside this one -> the package that it needs
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "swanlab": "swanlab",
    "mlflow": "mlflow",
    "trackio": "trackio",
}


def check_installed(names: Sequence[str]) -> None:
    """Raises UserError for a tracker whose package is not here; imports none of them."""
    for name in names:
        found = importlib.util.find_spec(PACKAGES[name])
        if found is None or found.origin is None:  # a folder of that name, such as wandb's own records, is no package
            raise UserError(
                f"trainer.trackers has {name}, and the package {PACKAGES[name]} is not installed here",
                "the tracker is the package's work",
                f"pip install {PACKAGES[name]}, or leave {name} out: metrics.jsonl and report.html are written in any case",
            )
