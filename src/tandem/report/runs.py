"""A run's folder as a person reads it: which files there are, its settings, its notes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tandem.errors import UserError
from tandem.track.metrics import read_metrics
from tandem.track.notes import read_notes
from tandem.track.rollouts import rollout_files

Metrics = Mapping[str, float | None]
MARKS = ("config.yaml", "metrics.jsonl", "rollouts")  # one of them is in every run's folder


@dataclass(frozen=True)
class RunFolder:
    """Each file is read once, when it is asked for."""

    path: Path
    name: str

    @cached_property
    def metrics(self) -> list[Metrics]:
        return list(read_metrics(self.path))

    @cached_property
    def config_text(self) -> str:
        file = self.path / "config.yaml"
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Dotted key -> value; empty without a config.yaml that can be read."""
        try:
            tree = yaml.safe_load(self.config_text)
        except yaml.YAMLError:  # the text is shown as it is
            return {}
        return dict(_leaves(tree)) if isinstance(tree, dict) else {}

    @cached_property
    def plan(self) -> dict[str, Any]:
        return self._json("plan.json")

    @cached_property
    def notes(self) -> list[str]:
        """What the run said while it went on, in order."""
        return read_notes(self.path)

    @property
    def rollouts(self) -> dict[int, Path]:
        return rollout_files(self.path)

    @property
    def changes(self) -> str:
        """Differs as soon as something was written."""
        files = [self.path / "metrics.jsonl", self.path / "plan.json", self.path / "logs" / "notes.jsonl", self.path / "rollouts"]
        return ".".join(str(file.stat().st_mtime_ns) if file.exists() else "-" for file in files)

    def _json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            value = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise UserError(f"{file} is not JSON", str(error), "restore the file, or remove it") from error
        return value if isinstance(value, dict) else {}


def run_folder(path: str | Path) -> RunFolder:
    """Raises UserError when `path` is no run's folder."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"no run at {path}", "there is no such folder", "give the folder of a run: runs/<recipe>-<time>")
    if not any((folder / mark).exists() for mark in MARKS):
        raise UserError(
            f"{path} is no run's folder", f"it has none of {', '.join(MARKS)}", "give the folder of a run: runs/<recipe>-<time>"
        )
    return RunFolder(folder, folder.resolve().name)


def run_folders(paths: list[Path]) -> list[RunFolder]:
    """With names that tell them apart. Raises UserError when one is no run's folder, or is given twice."""
    runs = [run_folder(path) for path in paths]
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise UserError("a run is given twice", "its curves would lie on one another", "give each folder once")
    names = [run.name for run in runs]
    return [run if names.count(run.name) == 1 else RunFolder(run.path, f"{run.path.resolve().parent.name}/{run.name}") for run in runs]


def _leaves(tree: Mapping[str, Any], before: str = ""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
