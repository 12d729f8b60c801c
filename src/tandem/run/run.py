"""A run: its parts, made in order, and the few things that are done with several of them at once."""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from tandem.algorithms.advantages import GREEDY_ADVANTAGES
from tandem.algorithms.state import AlgorithmState
from tandem.config.checks import data_parallel_size
from tandem.config.schema import Config
from tandem.data.loader import Loader
from tandem.data.prompts import PromptBuilder, build_prompts
from tandem.data.rows import read_rows
from tandem.data.types import Prompt
from tandem.errors import RunError
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tandem.rewards.pool import RewardPool
from tandem.rollout.types import SamplingParams
from tandem.run import export
from tandem.run.ahead import Batch, Rollouts
from tandem.run.canary import canary_prompts, canary_sequences, check_canary
from tandem.run.generators import EngineFailure, GeneratorGroup, Replica
from tandem.run.groups import TrainGroup
from tandem.run.publish import Publication, publish
from tandem.run.run_dir import shared_memory_prefix
from tandem.run.tracker import Tracker

log = logging.getLogger(__name__)


class Run:
    """Made by the controller. `version` counts the steps of training in the weights that the generators hold."""

    def __init__(self, config: Config, run_dir: Path, track: Tracker):
        self.config, self.run_dir, self.track = config, run_dir, track
        self.model_path = config.model.path
        self.version = -1
        self.trained_version = 0  # optimizer steps in the trainers' weights
        self.stop_requested = False
        self.algorithm_state = AlgorithmState(config.algorithm.kl.coef)
        self._names: set[str] | None = None  # of all tensors of the model
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
            self.loader_state = self.loader.state_dict()
            if hasattr(self, "generators"):
                ahead, greedy = self.config.rollout.max_staleness, self.config.algorithm.advantage in GREEDY_ADVANTAGES
                self.rollouts = Rollouts(self.loader, self.train_prompts, self.generators, ahead=ahead, greedy=greedy)
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

    def next_batch(self, step: int) -> Batch:
        """The next prompts and their samples. With `rollout.max_staleness` those of the next step are begun as well."""
        taken = self.loader_state["position"] // self.config.data.train_batch_size  # as many as steps, unless some took several
        following = sampling(self.config, taken + 2) if step < self.total_steps and not self.stop_requested else None
        batch = self.rollouts.take(sampling(self.config, taken + 1), following)
        self.loader_state = batch.loader_state
        return batch

    @contextmanager
    def changing_weights(self, step: int) -> Iterator[None]:
        """While this lasts no engine can be brought up to date: the trainers' weights are between two versions."""
        with self.trainers.lock:
            yield
            self.trained_version = step

    def publish(self, version: int) -> dict[str, float]:
        """Bring every generator to the trainers' present weights, those of `version`, and prove it. Returns metrics."""
        self.rollouts.settle()
        self.trained_version = version
        self.trainers.offload(parameters=False)  # what it does not need makes room for the generators' weights
        self.generators.wake(self.generators.replicas, "weights")
        done = self.catch_up(self.generators.replicas)
        if self.version < 0:
            self.track.note(f"published {len(done.names)} tensors, {done.num_bytes / 2**20:.1f} MiB, in {done.seconds:.2f} s")
        self.version = version
        metrics: dict[str, float] = {
            "publish/num_tensors": len(done.names),
            "publish/num_checksums": done.num_checksums,
            "publish/bytes_per_s": done.num_bytes / done.seconds,
        }
        return metrics if done.canary_abs_diff is None else metrics | {"publish/canary_abs_diff": done.canary_abs_diff}

    def catch_up(self, replicas: list[Replica]) -> Publication:
        """Bring some generators to the trainers' present weights; those that fail meanwhile are started anew.

        Raises:
            GeneratorsFailed: as often as `rollout.max_failures` allows.
            RunError: a tensor of the model was not published, or a generator decodes something else than the trainer would.
        """
        config, num_engines, differences = self.config, len(self.generators.replicas), list[float]()
        with self.trainers.lock:
            version, behind = self.trained_version, list(replicas)
            while behind:
                share = config.sync.verify_share if version > 1 and len(behind) == num_engines else 1.0
                limit = config.rollout.health_timeout_s
                done = publish(self.trainers, behind, version, self.shared_memory_prefix, verify_share=share, timeout_s=limit)
                self._check_names(done.names)
                self.trainers.offload(parameters=True)
                self.generators.wake(behind, "kv_cache")
                taken = [replica for replica in behind if replica not in done.failed]
                if config.sync.canary_tokens and not config.trainer.offload:  # scoring would bring back what was just moved out
                    differences += self._check_canary(taken, done.failed)
                self.generators.replace_failed(done.failed)
                behind = list(done.failed)
        return replace(done, canary_abs_diff=max(differences, default=None))

    def _check_names(self, names: list[str]) -> None:
        if self._names is None:
            tied = AutoConfig.from_pretrained(self.model_path).tie_word_embeddings
            self._names = HuggingFaceFolder(self.model_path, tied).names()
        if differing := self._names ^ set(names):
            raise RunError(
                f"{len(differing)} tensors of the model were not published, or are not in it: {sorted(differing)[:5]}",
                "generators would keep old weights for them",
                "report this with the model's config.json",
            )

    def _check_canary(self, replicas: list[Replica], failed: dict[Replica, EngineFailure]) -> list[float]:
        """The mean |Δ log-prob| of each engine that decoded; the others are added to `failed`."""
        prompts, greedy = canary_prompts(self.train_prompts), SamplingParams(temperature=0.0, max_tokens=self.config.sync.canary_tokens)
        sung = self.generators.decode(replicas, prompts, greedy, failed)
        sequences = canary_sequences(prompts, [*sung.values()], data_parallel_size(self.config))
        scored = [logprobs for logprobs, _ in self.trainers.scores(sequences, temperature=1.0)] if sequences else []
        return check_canary([*sung.values()], scored, [str(replica) for replica in sung], self.config.fidelity)

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
            state: dict[str, Any] = {"step": step, "loader": self.loader_state, "algorithm": self.algorithm_state.to_dict()}
            state["config"] = self.config.model_dump(mode="json")
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
        if hasattr(self, "rollouts"):
            self.rollouts.close()
        if hasattr(self, "graders"):
            self.graders.close()


def sampling(config: Config, batch: int) -> SamplingParams:
    """How the samples of a batch of prompts are drawn; the first is 1."""
    rollout = config.rollout
    seed = config.trainer.seed * 1_000_003 + batch
    return SamplingParams(rollout.n, rollout.temperature, rollout.top_p, rollout.top_k, config.data.max_response_length, seed)
