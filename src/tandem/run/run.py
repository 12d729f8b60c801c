"""A run: its parts, made in order, and the few things that are done with several of them at once."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from tandem.config.schema import Config
from tandem.data.loader import Loader
from tandem.data.prompts import PromptBuilder, build_prompts
from tandem.data.rows import read_rows
from tandem.data.types import Prompt
from tandem.errors import RunError
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tandem.rewards.pool import RewardPool
from tandem.run import export
from tandem.run.groups import GeneratorGroup, TrainGroup
from tandem.run.publish import publish
from tandem.run.run_dir import shared_memory_prefix
from tandem.run.tracker import Tracker

log = logging.getLogger(__name__)


class Run:
    """Made by the controller. `version` counts the optimizer steps in the weights that the generators hold."""

    def __init__(self, config: Config, run_dir: Path, track: Tracker):
        self.config, self.run_dir, self.track = config, run_dir, track
        self.model_path = config.model.path
        self.version = -1
        self.stop_requested = False
        self.trainers: TrainGroup
        self.generators: GeneratorGroup
        self.graders: RewardPool
        self.train_prompts: list[Prompt] = []
        self.val_prompts: list[Prompt] = []
        self.warm_start_prompts: list[Prompt] = []  # held-out rows that decide when the warm start stops

    def prepare_prompts(self, *, train: bool, validation: bool) -> None:
        """Read the files and process each row once.

        Raises:
            UserError: a bad row, or no row is left.
        """
        data = self.config.data
        self.builder = PromptBuilder(self.model_path, data)
        if train:
            self.train_prompts = self._prompts("training rows", data.train_files, 0)
            self.loader = Loader(len(self.train_prompts), data.train_batch_size, self.config.trainer.seed, data.shuffle)
        if validation and data.val_files:
            self.val_prompts = self.warm_start_prompts = self._prompts("held-out rows", data.val_files, data.val_max_rows)
        if train and self.config.warm_start.max_steps and self.config.warm_start.val_files:
            self.warm_start_prompts = self._prompts("held-out rows of the warm start", self.config.warm_start.val_files, 0)

    def _prompts(self, what: str, files: list[str], max_rows: int) -> list[Prompt]:
        rows = read_rows(files)
        rows = rows[:max_rows] if max_rows else rows
        with self.track.phase(what, len(rows)) as progress:
            made = build_prompts(rows, self.builder, progress)
        if made.num_overlong:
            limit = self.config.data.max_prompt_length
            self.track.note(f"{what}: {made.num_overlong} of {len(rows)} left out, longer than data.max_prompt_length={limit}")
        return made.prompts

    @property
    def total_steps(self) -> int:
        trainer = self.config.trainer
        return trainer.total_steps or self.loader.batches_in(trainer.total_epochs)

    def next_prompts(self) -> list[Prompt]:
        _, indices = self.loader.next()
        return [self.train_prompts[index] for index in indices]

    def publish(self, version: int) -> None:
        """Bring every generator to the trainers' present weights, and check that no tensor was left out."""
        done = publish(self.trainers, self.generators, version, self.shared_memory_prefix)
        if version == 0:
            tied = AutoConfig.from_pretrained(self.model_path).tie_word_embeddings
            expected, got = HuggingFaceFolder(self.model_path, tied).names(), set(done.names)
            if expected != got:
                raise RunError(
                    f"{len(expected ^ got)} tensors of the model were not published, or are not in it: {sorted(expected ^ got)[:5]}",
                    "generators would keep old weights for them",
                    "report this with the model's config.json",
                )
            self.track.note(f"published {len(got)} tensors, {done.num_bytes / 2**20:.1f} MiB, in {done.seconds:.2f} s")
        self.version = version

    @property
    def shared_memory_prefix(self) -> str:
        return shared_memory_prefix(self.run_dir)

    def save(self, step: int) -> Path:
        """A checkpoint under checkpoints/step_<n>, complete only once it has that name."""
        final = self.run_dir / "checkpoints" / f"step_{step:06d}"
        beside = final.with_name(final.name + ".tmp")
        with self.track.phase("saving"):
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            self.trainers.save(str(beside))
            state: dict[str, Any] = {"step": step, "loader": self.loader.state_dict(), "config": self.config.model_dump(mode="json")}
            (beside / "state.json").write_text(json.dumps(state, indent=1))
            shutil.rmtree(final, ignore_errors=True)
            os.replace(beside, final)
        return final

    def export(self) -> Path:
        """The policy as a Hugging Face folder, export/, laid out like the start model's and read again."""
        with self.track.phase("exporting"):
            return export.export(self.trainers, Path(self.model_path), self.run_dir / "export")

    def close(self) -> None:
        """Stop the graders; Ray's actors end with the cluster."""
        if hasattr(self, "graders"):
            self.graders.close()
