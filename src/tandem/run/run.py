"""A run: its parts, made in order, and the few things that are done with several of them at once."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from transformers import AutoConfig

from tandem.actors.generator_group import EngineFailure, GeneratorGroup, Replica
from tandem.actors.train_group import TrainGroup
from tandem.algorithms.advantages import GREEDY_ADVANTAGES
from tandem.algorithms.state import AlgorithmState
from tandem.checkpoint import checkpoints, export
from tandem.checkpoint.saving import Saving
from tandem.config.checkpointfolder import CRITIC, EXPORTED, FOLDER, REFERENCE, TRAINERS, Checkpoint, read_manifest
from tandem.config.checks import data_parallel_size, has_critic
from tandem.config.folders import cache_dir
from tandem.config.schema import Config
from tandem.data.bad_rows import BadRows
from tandem.data.loader import Loader
from tandem.data.mix import parse_weights
from tandem.data.prompt_set import PromptSet, build_prompts
from tandem.data.prompts import PromptBuilder
from tandem.data.rows import read_rows
from tandem.data.types import Prompt
from tandem.doctor.versions import versions
from tandem.errors import RunError, UserError, cannot_write
from tandem.progress import Progress, part_of, unseen
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tandem.rewards.pool import RewardPool
from tandem.rollout.environment import load_environment
from tandem.rollout.types import SamplingParams
from tandem.run.ahead import Batch, Rollouts
from tandem.run.ahead_json import batch_from_json, batch_to_json
from tandem.run.canary import canary_prompts, canary_sequences, check_canary
from tandem.run.pictures import ImageStore
from tandem.run.publish import Publication, publish
from tandem.run.record import rollout_rows
from tandem.run.replay import Replay
from tandem.run.samples import Sample
from tandem.run.tracker import Tracker
from tandem.secrets import without_secrets
from tandem.sync.shared_memory import shared_memory_prefix

log = logging.getLogger(__name__)


class Run:
    """Made by the controller. `version` counts the steps of training in the weights that the generators hold."""

    def __init__(self, config: Config, run_dir: Path, track: Tracker):
        self.config, self.run_dir, self.track = config, run_dir, track
        self.given = config  # without the paths of what the recipe makes for itself
        self.model_path = config.model.path
        self.version = -1
        self.trained_version = 0  # optimizer steps in the trainers' weights
        self.stop_requested = False
        self.peak_flops: float | None = None  # of a training device, a second; None: not known, and no `mfu`
        self.algorithm_state = AlgorithmState(config.algorithm.kl.coef)
        self.images = ImageStore(run_dir, config.record.image_bytes)
        self.saving = Saving()
        self._names: set[str] | None = None  # of all tensors of the model
        self.trainers: TrainGroup
        self.generators: GeneratorGroup
        self.graders: RewardPool
        self.train_prompts: PromptSet
        self.val_prompts: PromptSet | list[Prompt] = []
        self.warm_start_prompts: PromptSet | list[Prompt] = []  # held-out rows that decide when the warm start stops

    def prepare_prompts(self, *, train: bool, validation: bool) -> None:
        """Read the files and process each row once.

        Raises:
            UserError: a bad row, or no row is left.
        """
        data = self.config.data
        self.builder = PromptBuilder(self.model_path, data)
        if train:
            self.train_prompts = self._prompts("training rows", data.train_files, 0)
            sources = [row.data_source for row in self.train_prompts.rows]
            self.loader = Loader(
                len(self.train_prompts),
                data.train_batch_size,
                self.config.trainer.seed,
                data.shuffle,
                sources=sources,
                weights=parse_weights(data.weights, sources),
            )
            self.loader_state = self.trained_loader_state = self.loader.state_dict()
            if hasattr(self, "generators"):
                ahead, greedy = self.config.rollout.max_staleness, self.config.algorithm.advantage in GREEDY_ADVANTAGES
                self.rollouts = Rollouts(self.loader, self.train_prompts, self.generators, ahead=ahead, greedy=greedy)
        if validation and data.val_files:
            self.val_prompts = self.warm_start_prompts = self._prompts("held-out rows", data.val_files, data.val_max_rows)
        if train and self.config.warm_start.max_steps and self.config.warm_start.val_files:
            self.warm_start_prompts = self._prompts("held-out rows of the warm start", self.config.warm_start.val_files, 0)

    def _prompts(self, what: str, files: list[str], max_rows: int) -> PromptSet:
        data = self.config.data
        bad = BadRows(skip=data.on_bad_row == "skip")
        rows = read_rows(files, data, bad)
        rows = rows[:max_rows] if max_rows else rows
        if name := self.config.rollout.environment:
            opened = load_environment(name).opened
            rows = [opened(row) for row in rows]
        with self.track.phase(what, len(rows)) as progress:
            made = build_prompts(rows, self.builder, progress, bad=bad, cache=cache_dir() / "lengths" if data.cache else None)
        if bad.summary:
            self.track.note(f"{what}: {bad.summary}")
        if made.num_overlong:
            limit = self.config.data.max_prompt_length
            self.track.note(f"{what}: {made.num_overlong} of {len(rows)} left out, longer than data.max_prompt_length={limit}")
        return made

    def replay(self) -> None:
        """Take recorded rollouts, as they are, in the place of generators. Raises UserError as `Replay` does."""
        if self.config.algorithm.dynamic_sampling:
            algorithm = self.config.algorithm.model_copy(update={"dynamic_sampling": 0})
            self.config = self.config.model_copy(update={"algorithm": algorithm})
            self.track.note("algorithm.dynamic_sampling is left out: what it chose is what was recorded")
        self.rollouts = Replay(self.config, self.loader, self.train_prompts, self.total_steps)
        self.val_prompts = []

    @property
    def takes_turns(self) -> bool:
        """Whether there are both trainers and generators."""
        return hasattr(self, "trainers") and hasattr(self, "generators")

    @property
    def max_staleness(self) -> int:
        """By how many versions samples may be behind; recorded ones by any number."""
        return self.total_steps if self.config.record.replay else self.config.rollout.max_staleness

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
            self.trained_version, self.trained_loader_state = step, self.loader_state

    def publish(self, version: int) -> dict[str, float]:
        """Bring every generator to the trainers' present weights, those of `version`, and prove it. Returns metrics."""
        if not self.takes_turns:
            self.version = self.trained_version = version
            return {}
        self.rollouts.settle()
        self.trained_version = version
        self.trainers.offload(parameters=False)  # what it does not need makes room for the generators' weights
        self.generators.wake_weights()
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
                done = publish(
                    *(self.trainers, behind, version, self.shared_memory_prefix),
                    verify_share=share,
                    timeout_s=limit,
                    progress=lambda num_tensors: self.track.advanced(num_tensors, len(self._expected_names())),
                )
                self._check_names(done.names)
                self.trainers.offload(parameters=True)
                self.generators.wake_caches([replica for replica in behind if replica not in done.failed], done.failed)
                taken = [replica for replica in behind if replica not in done.failed]
                if config.sync.canary_tokens and not config.trainer.offload:  # scoring would bring back what was just moved out
                    differences += self._check_canary(taken, done.failed)
                for replica in taken:
                    replica.has_refused &= replica in done.failed
                self.generators.replace_failed(done.failed)
                behind = list(done.failed)
        return replace(done, canary_abs_diff=max(differences, default=None))

    def _expected_names(self) -> set[str]:
        """Of all tensors of the model."""
        if self._names is None:
            tied = AutoConfig.from_pretrained(self.model_path).tie_word_embeddings
            self._names = HuggingFaceFolder(self.model_path, tied).names()
        return self._names

    def _check_names(self, names: list[str]) -> None:
        if differing := self._expected_names() ^ set(names):
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

    def start(self) -> int:
        """Begin with the weights that the trainers hold; returns the steps done: none."""
        config = self.config
        self._go_on_after(-1)
        if config.algorithm.kl.coef > 0:
            self._keep_reference()
        self.trainers.start_optimizer(config.optimizer.lr, config.optimizer.weight_decay)
        if has_critic(config):
            self.trainers.start_critic(config.critic.optimizer.lr, config.critic.optimizer.weight_decay)
        return 0

    def _go_on_after(self, step: int) -> None:
        """What the folder holds of later steps is of another course of the run."""
        (self.run_dir / EXPORTED).unlink(missing_ok=True)
        self.track.go_on_after(step)
        for later in checkpoints.set_aside(self.run_dir, after=step):
            self.track.note(f"set aside: the checkpoint of step {later} that was here, as step_{later:06d}.aside")

    def _keep_reference(self) -> None:
        """The trainers' present weights are the reference. What a warm start made is written down; the start model can be read again."""
        self.trainers.keep_reference()
        target = self.run_dir / FOLDER / REFERENCE
        if self.config.warm_start.max_steps and not target.exists():
            checkpoints.write(target, None, lambda folder: self.trainers.begin_save(folder, optimizer=False)(unseen))

    def resume(self, checkpoint: Checkpoint) -> int:
        """Go on as if the run had not ended: weights, optimizer, random numbers, rows, reference, records. Returns the steps done.

        Raises:
            UserError: a file of the checkpoint is damaged; names it.
        """
        config, state = self.config, checkpoint.state
        with self.track.phase("loading the checkpoint"):
            if config.algorithm.kl.coef > 0:
                if config.warm_start.max_steps:
                    reference = checkpoint.path.parent / REFERENCE
                    self.trainers.load(reference, read_manifest(reference), optimizer=False)
                self._keep_reference()
            self.trainers.start_optimizer(config.optimizer.lr, config.optimizer.weight_decay)
            self.trainers.load(checkpoint.path / TRAINERS, checkpoint.shards(TRAINERS))
            if has_critic(config):
                self.trainers.start_critic(config.critic.optimizer.lr, config.critic.optimizer.weight_decay)
                self.trainers.load(checkpoint.path / CRITIC, checkpoint.shards(CRITIC), critic=True)
        self.loader.load_state_dict(state["loader"])
        self.loader_state = self.trained_loader_state = self.loader.state_dict()
        if state.get("ahead"):
            self.rollouts.restore(batch_from_json(state["ahead"], self.train_prompts))
            self.loader.load_state_dict(state["ahead"]["loader"])
        self.algorithm_state = AlgorithmState.from_dict(state["algorithm"])
        if state["config"]["algorithm"]["kl"]["coef"] != config.algorithm.kl.coef:  # it was set anew
            self.algorithm_state.kl_coef = config.algorithm.kl.coef
        self._go_on_after(checkpoint.step)
        self.track.note(f"resumed after step {checkpoint.step}, from {checkpoint.path}")
        return checkpoint.step

    def save(self, step: int, *, wait: bool = False) -> Path:
        """A checkpoint under checkpoints/step_<n>, complete only once it has that name; those that need not stay are removed.

        The trainers copy their state; files are written while the run goes on, unless `trainer.async_save` is off or `wait` is set.
        """
        final = self.run_dir / FOLDER / f"step_{step:06d}"
        ahead = self.rollouts.pending
        state = {
            "step": step,
            "total_steps": self.total_steps,
            "loader": self.trained_loader_state,
            "ahead": batch_to_json(ahead) if ahead else None,
            "algorithm": self.algorithm_state.to_dict(),
            "config": without_secrets(self.given.model_dump(mode="json")),
            "versions": versions(),
        }
        self.settle_save()
        with self.track.phase("saving"):
            checkpoints.begin(final)
            written = self._begin_save_of_trainers(checkpoints.beside(final))
            self.saving.begin(lambda progress: checkpoints.complete(final, state, lambda: written(progress)))
        if wait or not self.config.trainer.async_save:
            self.settle_save()
        return final

    def _begin_save_of_trainers(self, folder: Path) -> Callable[[Progress], dict[str, str]]:
        """Policy, and critic where there is one, each into a folder of its own in `folder`."""
        written = {}
        for name in (TRAINERS, CRITIC) if has_critic(self.config) else (TRAINERS,):
            try:
                (folder / name).mkdir()
            except OSError as error:
                raise cannot_write(folder / name, error, "checkpoint") from error
            written[name] = self.trainers.begin_save(folder / name, critic=name == CRITIC)

        def wait_for_all(progress: Progress) -> dict[str, str]:
            digests = {}
            for index, (name, wait) in enumerate(written.items()):
                found = wait(part_of(progress, index, len(written)))
                digests |= {f"{name}/{file}": digest for file, digest in found.items()}
            return digests

        return wait_for_all

    def settle_save(self, *, wait: bool = True) -> None:
        """Raises RunError when the checkpoint that is being written, or was since, failed. Args: wait: until it is complete."""
        if self.saving.is_settled:
            return
        with self.track.phase("saving") if wait else nullcontext(unseen) as progress:
            if self.saving.settle(wait=wait, progress=progress):
                self.prune()

    def prune(self) -> None:
        trainer = self.config.trainer
        best = self.track.best_step(checkpoints.steps_in(self.run_dir)) if trainer.keep_best else None
        checkpoints.prune(self.run_dir, keep_last=trainer.keep_last, keep_every=trainer.keep_every, best=best)

    def check_shared_folder(self) -> None:
        """Raises UserError when a rank's node has another disk under the run's folder: its part of a checkpoint would be lost."""
        mark = self.run_dir / "logs" / "seen"
        mark.touch()
        blind = [str(rank) for rank, seen in enumerate(self.trainers.see(mark)) if not seen]
        mark.unlink()
        if blind:
            raise UserError(
                f"the nodes of ranks {', '.join(blind[:8])} do not see {self.run_dir}",
                "every rank writes its part of a checkpoint there",
                "set run_dir to a folder on a file system that every node mounts",
            )

    def export(self, step: int = 0) -> Path:
        """The policy after `step` steps as a Hugging Face folder, export/, laid out like the start model's and read again."""
        with self.track.phase("exporting"):
            (self.run_dir / EXPORTED).unlink(missing_ok=True)
            folder = export.export(self.trainers, Path(self.model_path), self.run_dir / "export")
            (self.run_dir / EXPORTED).write_text(json.dumps({"step": step}), encoding="utf-8")
            return folder

    def record(self, step: int, samples: list[Sample]) -> None:
        """Write a step's samples, for people and for `tandem debug train-only`."""
        self.track.rollouts(step, rollout_rows(samples, self.builder.token_texts, self.images))

    def close(self) -> None:
        """Stop the graders; Ray's actors end with the cluster. A checkpoint that is being written is waited for."""
        self.saving.close(self.config.trainer.stop_grace_s)
        if hasattr(self, "rollouts"):
            self.rollouts.close()
        if hasattr(self, "graders"):
            self.graders.close()


def sampling(config: Config, batch: int) -> SamplingParams:
    """How the samples of a batch of prompts are drawn; the first is 1."""
    rollout = config.rollout
    seed = config.trainer.seed * 1_000_003 + batch
    return SamplingParams(rollout.n, rollout.temperature, rollout.top_p, rollout.top_k, config.data.max_response_length, seed)
