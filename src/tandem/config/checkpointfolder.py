"""Reading a run's checkpoints without a device: which is the newest, is it whole, does it fit the settings.

A checkpoint is a folder `checkpoints/step_<n>` that got this name when everything in it, the manifest last, was on the disk. The manifest
has the size and the blake3 of every other file. `checkpoint/checkpoints.py` writes it.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tandem.config.keys import SETTINGS
from tandem.config.schema import Config
from tandem.errors import UserError
from tandem.secrets import without_secrets

FORMAT = 1
STEP = re.compile(r"step_\d{6,}", re.ASCII)
FOLDER, MANIFEST, STATE, TRAINERS, REFERENCE = "checkpoints", "manifest.json", "state.json", "trainers", "reference"
CRITIC = "critic"  # beside TRAINERS, where a critic learns
EXPORTED = "export.json"  # in the run's folder: of which step export/ is, once it is whole
# Settings that may change when a run goes on; keys, or whole sections with a dot.
FREE = (
    *("run_dir", "resume", "prepare", "recipe", "cluster.", "sync.", "fidelity.", "record."),
    *("trainer.total_steps", "trainer.total_epochs", "trainer.save_freq", "trainer.test_freq", "trainer.val_before_train"),
    *("trainer.keep_last", "trainer.keep_every", "trainer.keep_best", "trainer.max_restarts", "trainer.async_save"),
    *("trainer.trackers", "trainer.profile."),
    *("data.num_workers", "data.keep_bytes", "data.cache", "reward.num_workers"),
)
# What the weights, their optimizer or the order of the rows would not fit.
FIXED = (
    *("model.path", "model.dtype", "model.freeze_vision", "trainer.seed", "warm_start."),
    *("data.train_files", "data.shuffle", "data.max_prompt_length", "data.filter_overlong", "data.truncation", "data.thinking"),
    *("data.weights", "data.columns.", "data.instruction", "data.source", "data.system_prompt", "data.on_bad_row"),
)

# What a batch that was made ahead has been made by.
OF_A_BATCH = ("data.", "rollout.n", "rollout.max_staleness", "rollout.temperature", "rollout.top_p", "rollout.top_k", "algorithm.advantage")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose manifest was read and whose files are there at their sizes; their bytes are compared when it is loaded."""

    path: Path
    digests: dict[str, str]  # file in `path` -> blake3
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.state["step"])

    def shards(self, folder: str) -> dict[str, str]:
        """file -> blake3 of what is in one of its folders.

        Raises:
            UserError: it has no such folder: the run that wrote it had no critic.
        """
        found = {name.removeprefix(f"{folder}/"): digest for name, digest in self.digests.items() if name.startswith(f"{folder}/")}
        if not found:
            raise UserError(
                f"{self.path} has no {folder}",
                "the run that wrote it trained none, and algorithm.advantage needs one",
                "set the algorithm.advantage that it was saved with, or start anew from its export: model.path=RUN/export",
            )
        return found


def find_checkpoint(resume: str, run_dir: Path) -> Checkpoint | None:
    """What `resume` means: `never`, `auto` (the newest of this run, None when it has none), or the path of a checkpoint or of a run.

    Raises:
        UserError: nothing is there, or a file of it is missing or of another size; names it.
    """
    if not resume:
        raise UserError("resume is empty", "it says where a run goes on", "set resume=never, auto, or the path of a checkpoint or a run")
    if resume == "never":
        return None
    if resume == "auto":
        return read_checkpoint(newest) if (newest := newest_in(run_dir)) else None
    path = Path(resume).expanduser().absolute()
    if (path / FOLDER).is_dir():
        if newest := newest_in(path):
            return read_checkpoint(newest)
        raise UserError(
            f"resume = {resume}: that run has no checkpoint", f"{path / FOLDER} holds none that is whole", "start anew: resume=never"
        )
    return read_checkpoint(path)


def named_checkpoint(name: str) -> Checkpoint:
    """`RUN` (its newest), `RUN/STEP` (`40`, `step_40` or `step_000040`), or the checkpoint's own folder.

    Raises:
        UserError: there is no such run or step, or a file of the checkpoint is missing or of another size; names it.
    """
    path = Path(name).expanduser().absolute()
    run_dir = path if (path / FOLDER).is_dir() else path.parent.parent if path.parent.name == FOLDER else path.parent
    if not (run_dir / FOLDER).is_dir():
        raise UserError(f"no run at {path}", f"there is no folder {FOLDER} in it", "give a run's folder, or RUN/STEP: runs/mine/40")
    steps = [step_of(found) for found in checkpoints_in(run_dir)]
    if not steps:
        raise UserError(f"{run_dir} has no checkpoint", "none was completed", "let the run save one: trainer.save_freq")
    asked = re.fullmatch(r"(?:step_)?(\d+)", path.name, re.ASCII) if path != run_dir else None
    step = steps[-1] if path == run_dir else int(asked[1]) if asked else -1
    if step not in steps:
        known = ", ".join(map(str, steps[-8:]))
        raise UserError(
            f"no checkpoint {path.name} in {run_dir}", f"it has those of steps {known}", f"give one of them: {run_dir}/{steps[-1]}"
        )
    return read_checkpoint(run_dir / FOLDER / f"step_{step:06d}")


def newest_in(run_dir: Path) -> Path | None:
    """The folder of a run's last step."""
    return next(reversed(checkpoints_in(run_dir)), None)


def checkpoints_in(run_dir: Path) -> list[Path]:
    """Folders of a run's steps, in their order; half-written ones do not have such a name."""
    return sorted((path for path in (run_dir / FOLDER).glob("step_*") if STEP.fullmatch(path.name) and path.is_dir()), key=step_of)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises UserError, naming the file, when something is missing, cut off or unreadable."""
    digests = read_manifest(path)
    state = _json(path / STATE)
    missing = {"step", "total_steps", "loader", "algorithm", "config"} - state.keys()
    if missing:
        raise damaged(path / STATE, f"it has no {', '.join(sorted(missing))}")
    return Checkpoint(path, digests, state)


def read_manifest(path: Path) -> dict[str, str]:
    """File -> blake3 of a folder with a manifest, all of whose files are there at their sizes. Raises UserError, naming the file."""
    if not path.is_dir():
        raise UserError(f"no checkpoint at {path}", "there is no such folder", "give a folder checkpoints/step_<n>, or the run's own")
    manifest = _json(path / MANIFEST)
    if (found := manifest.get("format")) != FORMAT:
        raise UserError(
            f"the checkpoint {path} is of another format: {found}",
            f"this version reads format {FORMAT}; its files may mean something else",
            "go on with the version of Tandem that wrote it (see state.json), or start anew from its export: model.path=RUN/export",
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(told, dict) and {"bytes", "blake3"} <= told.keys() for told in files.values()):
        raise damaged(path / MANIFEST, "it lists no files")
    for name, told in files.items():
        file = path / name
        if not file.resolve().is_relative_to(path.resolve()):
            raise damaged(path / MANIFEST, f"it names a file outside the checkpoint: {name}")
        if not file.is_file():
            raise damaged(file, "it is missing")
        if file.stat().st_size != told["bytes"]:
            raise damaged(file, f"it has {file.stat().st_size} bytes instead of {told['bytes']}")
    return {name: str(told["blake3"]) for name, told in files.items()}


def differences(state: dict[str, Any], now: Config) -> list[tuple[str, Any, Any]]:
    """(key, saved, now) of every setting that differs and is not free to. Defaults stand for settings that the saved run did not know.

    Secrets in them are neither compared nor told: they are not saved.

    Args:
        state: of the checkpoint.

    Raises:
        UserError: one of them cannot change: the weights, the optimizer or the order of the rows would not fit.
    """
    try:
        before = Config.model_validate(state["config"])
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"the checkpoint's settings are not those of this version: {where}",
            error.errors()[0]["msg"],
            "go on with the version that wrote it",
        ) from error
    changed = [(key, old, new) for key in SETTINGS if (old := _told(before, key)) != (new := _told(now, key)) and not _among(key, FREE)]
    changed = [change for change in changed if change[0] != "device" or now.device != "auto"]
    fixed_keys = FIXED + (OF_A_BATCH if state.get("ahead") else ())
    if fixed := [change for change in changed if _among(change[0], fixed_keys)]:
        told = "; ".join(f"{key}: {old!r} -> {new!r}" for key, old, new in fixed)
        raise UserError(
            "the checkpoint is of a run with other settings", told, "give the settings that it was saved with, or start anew: resume=never"
        )
    return changed


def finished_steps(config: Config) -> int:
    """The steps of a run that has done all of them and has exported its policy; 0 of one with something left to do."""
    checkpoint = find_checkpoint(config.resume, Path(config.run_dir))
    if not checkpoint or exported_step(Path(config.run_dir)) != checkpoint.step:
        return 0
    saved = checkpoint.state["config"]
    same = (
        saved["trainer"]["total_epochs"] == config.trainer.total_epochs
        and saved["data"]["train_batch_size"] == config.data.train_batch_size
    )
    by_epochs = (
        checkpoint.state["total_steps"] if same and not saved["trainer"]["total_steps"] else 0
    )  # else it is known once rows are read
    total = config.trainer.total_steps or by_epochs
    return checkpoint.step if total and checkpoint.step >= total else 0


def exported_step(run_dir: Path) -> int | None:
    """The step whose policy the run has exported; None: it has not, or has gone on since."""
    file = run_dir / EXPORTED
    return int(_json(file)["step"]) if file.is_file() and (run_dir / "export" / "config.json").is_file() else None


def value_of(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _told(config: Config, key: str) -> Any:
    value = value_of(config, key)
    return without_secrets(value) if isinstance(value, str | list) else value


def damaged(file: Path, why: str) -> UserError:
    return UserError(
        f"the checkpoint is damaged: {file}",
        why,
        "resume from an earlier one: resume=RUN/checkpoints/step_<n>; or restore the file from a copy",
    )


def _among(key: str, keys: tuple[str, ...]) -> bool:
    return any(key == one or (one.endswith(".") and key.startswith(one)) for one in keys)


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise damaged(file, "it is missing") from error
    except (OSError, ValueError) as error:
        raise damaged(file, f"it cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise damaged(file, "it is not a JSON object")
    return value
