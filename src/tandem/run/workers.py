"""The Ray actors: a training rank and a generator. Thin: each sets its process up, then hands calls to `Engine` or `RolloutEngine`.

Nothing heavy is imported at the top: an actor's environment must be set before torch is.
"""

import contextlib
import logging
import os
import queue
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.config.schema import Config
from tandem.data.types import Sequence
from tandem.rollout.types import Completion, Part, Request
from tandem.run.processes import Identity, family
from tandem.run.run_dir import shared_memory_prefix
from tandem.sync.types import Bucket, Meeting


def log_to_file(path: Path) -> None:
    """Send this process's logging, standard output and standard error to a file, native libraries' included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True)


def claimed_devices(device) -> list[str]:
    """Ids of the accelerators that Ray gave this actor; none on CPU."""
    import ray

    return list(ray.get_runtime_context().get_accelerator_ids().get(device.RAY_RESOURCE, []))


def see_only(device, ids: list[str]) -> None:
    """Let this process see these accelerators, as numbers 0, 1, ...; before torch is imported."""
    if device.VISIBLE_DEVICES_VARIABLE and ids:
        os.environ[device.VISIBLE_DEVICES_VARIABLE] = ",".join(ids)


class TrainRank:
    """One training process: one device."""

    def __init__(self, config: Config, rank: int, run_dir: str):
        from tandem import devices

        self.config, self.rank, self.run_dir = config, rank, Path(run_dir)
        self.device = devices.DEVICES[config.device]
        os.environ.update(devices.process_environment(self.device, config.trainer.num_threads))
        see_only(self.device, claimed_devices(self.device))
        log_to_file(self.run_dir / "logs" / f"train_rank_{rank}.log")
        self.engine: Any = None
        self.critic: Any = None
        self._writer: Any = None
        self._links: dict[int, Any] = {}  # to each engine
        self._writing: dict[bool, Any] = {}  # of the policy, and of the critic (True)
        self._publication: Iterator[Bucket] | None = None
        self._profile: tuple[Any, Any] | None = None  # operations, Python calls

    def place(self) -> tuple[str, list[str]]:
        """The node and the ids of its devices that this rank has."""
        import ray

        return str(ray.get_runtime_context().get_node_id()), claimed_devices(self.device)

    def address(self, port: int) -> tuple[str, int]:
        """An address of this node and a port that is free now (`port` itself when it is not 0)."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", port))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def start(self, address: str, port: int, world_size: int, model_path: str, banned_token_ids: list[int]) -> None:
        """Join the other ranks and load this rank's part of the model."""
        self.device.set_device(0)
        self.device.prepare_megatron(self.config.parallel)
        import torch

        from tandem.engine import groups
        from tandem.engine.engine import Engine
        from tandem.sync.buckets import cleanup

        cleanup(shared_memory_prefix(self.run_dir))  # of a killed run; no rank has begun to publish
        torch.set_num_threads(self.config.trainer.num_threads)
        torch.use_deterministic_algorithms(self.config.trainer.deterministic)
        rendezvous = groups.Rendezvous(address, port, self.rank, world_size)
        groups.initialize(
            self.device, rendezvous, self.config.parallel, seed=self.config.trainer.seed, timeout_s=self.config.trainer.collective_timeout_s
        )
        self.engine = Engine(self.config, model_path, self.device, banned_token_ids)

    def start_optimizer(self, lr: float, weight_decay: float) -> None:
        self.engine.start_optimizer(lr=lr, weight_decay=weight_decay)

    def keep_reference(self) -> None:
        self.engine.keep_reference()

    def offload(self, parameters: bool) -> None:
        self.engine.offload(parameters=parameters)
        if self.critic:
            self.critic.offload(parameters=True)

    def start_critic(self, lr: float, weight_decay: float) -> None:
        self.critic = self.engine.critic()
        self.engine.offload(parameters=True)
        self.critic.start_optimizer(lr=lr, weight_decay=weight_decay)
        self.critic.offload(parameters=True)

    def values(self, sequences: list[Sequence]) -> dict[int, Any]:
        with self._critics_turn():
            return self.critic.scores(sequences, temperature=1.0, masked=False)

    def update_critic(self, sequences: list[Sequence], lr: float) -> dict[str, float]:
        with self._critics_turn():
            return self.critic.update(sequences, lr=lr)

    @contextlib.contextmanager
    def _critics_turn(self) -> Iterator[None]:
        """With `trainer.offload` policy and critic are on the device one after the other."""
        self.engine.offload(parameters=True)
        yield
        self.critic.offload(parameters=True)

    def scores(self, sequences: list[Sequence], temperature: float, reference: bool, masked: bool) -> dict[int, Any]:
        return self.engine.scores(sequences, temperature=temperature, reference=reference, masked=masked)

    def update(self, sequences: list[Sequence], supervised: bool, lr: float, kl_coef: float) -> dict[str, float]:
        return self.engine.update(sequences, supervised=supervised, lr=lr, kl_coef=kl_coef)

    def next_bucket(self, version: int, prefix: str, verify_share: float, begin: bool) -> Bucket | None:
        """The next bucket of this rank's share of the weights, None after the last. Asking for one frees the last but one."""
        from tandem.sync.buckets import BucketWriter

        if self._writer is None:
            self._writer = BucketWriter(self._bucket_memory(prefix), self.config.sync.bucket_bytes)
        if begin:
            self._publication = self._writer.write(self.engine.tensors(), version, verify_share)
        assert self._publication is not None, "no publication has begun"
        return next(self._publication, None)

    def _bucket_memory(self, prefix: str) -> Any:
        from tandem.devices.handles import share
        from tandem.sync.buckets import SHARED_MEMORY
        from tandem.sync.memory import DeviceMemory, shared_files

        if self.config.sync.transport == "shared_memory":
            return shared_files(SHARED_MEMORY, prefix)
        sends = self.config.sync.transport == "collective"
        where = lambda data: {"sender": self.rank} if sends else {"handle": share(self.device, data)}  # noqa: E731
        return lambda num_bytes, _: DeviceMemory(num_bytes, self.device, where)

    def bucket_bytes(self, bucket: Bucket) -> Any:
        """The bucket's bytes, [num_bytes] uint8, for an engine on another node."""
        return self._bytes_of(bucket).cpu().numpy()

    def join(self, engine: int, meeting: Meeting) -> None:
        """Collective, with all ranks and the engine of this number."""
        from tandem.sync.link import Link

        self._links[engine] = Link(self.device, meeting, self.rank)

    def send(self, engine: int, bucket: Bucket) -> None:
        self._links[engine].send(self._bytes_of(bucket))

    def _bytes_of(self, bucket: Bucket) -> Any:
        from tandem.sync.buckets import span

        begin, end = span(bucket)
        return self._writer.memory.bytes[begin:end]

    def sees(self, path: str) -> bool:
        return Path(path).exists()

    def begin_save(self, path: str, optimizer: bool, critic: bool) -> None:
        """Copy this rank's part of a checkpoint; a thread begins to write it."""
        from tandem.engine import checkpoint

        assert critic not in self._writing, "one save at a time: its copy of the state is all the memory that there is for it"
        with self._critics_turn() if critic else contextlib.nullcontext():
            engine = self.critic if critic else self.engine
            self._writing[critic] = checkpoint.begin_save(engine, Path(path), optimizer=optimizer)

    def conclude_save(self, results: list[bytes], critic: bool) -> None:
        """On rank 0: begin to write what the ranks' files have in common. Args: results: of each rank, as `saved` gave them."""
        self._writing[critic].conclude(results)

    def saved(self, critic: bool) -> Any:
        """What was written since `begin_save` or `conclude_save`, a `Written`; None while it is being written."""
        return self._writing[critic].poll()

    def end_save(self, critic: bool) -> None:
        self._writing.pop(critic, None)

    def verify(self, path: str, digests: dict[str, str], num_ranks: int) -> None:
        """Compare this rank's share of the files of a checkpoint. Raises UserError, naming the file, when its bytes have changed."""
        from tandem.config.checkpointfolder import damaged
        from tandem.run.checkpoints import share_of
        from tandem.sync.digest import file_digest

        for name in share_of(digests, self.rank, num_ranks):
            file = Path(path) / name
            if not file.is_file():
                raise damaged(file, f"it is missing on the node of rank {self.rank}, {socket.gethostname()}")
            if file_digest(file) != digests[name]:
                raise damaged(file, "its bytes are not those that were saved")

    def load(self, path: str, optimizer: bool, critic: bool) -> None:
        from tandem.engine import checkpoint

        with self._critics_turn() if critic else contextlib.nullcontext():
            checkpoint.load(self.critic if critic else self.engine, Path(path), optimizer=optimizer)

    def export(self, source: str, target: str) -> list[Any]:
        """Write this rank's share into the weight files of `target`; returns its `Piece`s."""
        from tandem.engine import export

        return export.write_share(self.engine, Path(source), Path(target))

    def start_profile(self, timeline: bool) -> None:
        from tandem.run.traces import Operations, Timeline

        self._profile = Operations(self.device), Timeline(f"rank_{self.rank}") if timeline else None

    def stop_profile(self, step: int) -> str:
        """Write the trace of this step; returns the path of its part of the timeline, empty without one."""
        assert self._profile is not None, "no profile has begun"
        (operations, timeline), self._profile = self._profile, None
        part = timeline.write(self.run_dir, step) if timeline else ""
        operations.write(self.run_dir, step, self.rank)
        return part

    def memory(self) -> dict[str, int]:
        from tandem.devices import cpu

        return {"memory/device_peak_bytes": self.device.memory_peak_bytes(), "memory/host_peak_bytes": cpu.memory_peak_bytes()}


@dataclass(frozen=True)
class Signs:
    """An engine's signs of life."""

    num_steps: int  # of the engine since it was started
    finished: list[tuple[int, list[Completion]]]  # index of the prompt, its samples


class Generator:
    """One vLLM engine with its tensor-parallel workers."""

    def __init__(self, config: Config, index: int, run_dir: str, shared_devices: list[str]):
        """Args: shared_devices: ids of the training ranks' devices that it sees, those that it shares first; empty: those it claimed."""
        from tandem import devices
        from tandem.rollout.engine import engine_environment

        self.config, self.index, self.run_dir = config, index, Path(run_dir)
        device = devices.DEVICES[config.device]
        os.environ.update(engine_environment(config.rollout, config.device))
        see_only(device, shared_devices or claimed_devices(device))
        log_to_file(self.run_dir / "logs" / f"generator_{index}.log")
        self.engine: Any = None
        self._conversations: Any = None
        self._finished: queue.SimpleQueue[tuple[int, list[Completion]] | None] = queue.SimpleQueue()  # None: the rollout has ended
        self._timeline: Any = None

    def start(self, model_path: str, banned_token_ids: list[int], stop_token_ids: list[int]) -> tuple[str, list[Identity]]:
        """Load the model. Returns the node, and the processes to kill should the engine hang."""
        import ray

        from tandem.rollout.engine import RolloutEngine
        from tandem.run import remains

        config = self.config
        remains.remove(self.run_dir)
        with remains.noted(self.run_dir):
            self.engine = RolloutEngine(
                model_path,
                config.rollout,
                dtype=config.model.dtype,
                max_model_len=config.rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length,
                seed=config.trainer.seed,
                banned_token_ids=banned_token_ids,
                stop_token_ids=stop_token_ids,
                device=config.device,
            )
        if config.rollout.environment:
            from tandem.data.prompts import PromptBuilder
            from tandem.rollout.conversations import Conversations
            from tandem.rollout.environment import load_environment

            longest = config.rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
            self._conversations = Conversations(
                load_environment(config.rollout.environment),
                PromptBuilder(model_path, config.data),
                config.rollout.max_turns,
                config.rollout.environment_timeout_s,
                longest,
            )
        return ray.get_runtime_context().get_node_id(), family()

    def generate(self, requests: dict[int, Request], version: int) -> None:
        """`requests` by their index in the rollout; what is finished leaves through `poll`."""
        indices = list(requests)
        hand_out = lambda at, completions: self._finished.put((indices[at], completions))  # noqa: E731
        try:
            if self._conversations:
                self.engine.converse(list(requests.values()), version, self._conversations, hand_out)
            else:
                self.engine.generate(list(requests.values()), version, hand_out)
        finally:
            self._finished.put(None)  # a poll that still waits would wait for nothing

    def decode(self, requests: list[Request], version: int) -> list[Completion]:
        """One sample of each request."""
        return [completions[0] for completions in self.engine.generate(requests, version)]

    def poll(self, timeout_s: float) -> Signs:
        """What has finished since the last call, and how far the engine is; waits up to `timeout_s` for something to finish."""
        return Signs(self.engine.num_steps, self._take_finished(timeout_s))

    def _take_finished(self, timeout_s: float) -> list[tuple[int, list[Completion]]]:
        taken = []
        with contextlib.suppress(queue.Empty):
            taken.append(self._finished.get(timeout=timeout_s) if timeout_s else self._finished.get_nowait())
            while True:
                taken.append(self._finished.get_nowait())
        return [prompt for prompt in taken if prompt is not None]

    def begin_update(self, version: int) -> None:
        self._take_finished(0.0)  # of a rollout that was given up
        self.engine.begin_update(version)

    def join(self, meeting: Meeting) -> None:
        """Collective, with all training ranks."""
        self.engine.join_trainers(meeting)

    def load_bucket(self, bucket: Bucket, data: Any) -> None:
        """Args: data: the bucket's bytes, when they come from another node through Ray."""
        from tandem.sync.buckets import SHARED_MEMORY, copied_bucket

        prefix = shared_memory_prefix(self.run_dir)
        with contextlib.nullcontext(bucket) if data is None else copied_bucket(bucket, data, SHARED_MEMORY, prefix) as here:
            self.engine.load_bucket(here)

    def finish_update(self, version: int, expected_names: list[str]) -> Any:
        return self.engine.finish_update(version, expected_names)

    def start_profile(self) -> None:
        """A timeline; in the thread that generates."""
        from tandem.run.traces import Timeline

        self._timeline = Timeline(f"generator_{self.index}")

    def stop_profile(self, step: int) -> str:
        """Returns the path of its part of the timeline; empty when this process is younger than the step."""
        timeline, self._timeline = self._timeline, None
        return timeline.write(self.run_dir, step) if timeline else ""

    def sleep(self) -> None:
        self.engine.sleep()

    def wake(self, part: Part) -> None:
        self.engine.wake(part)

    def shutdown(self) -> None:
        if self.engine is not None:
            self.engine.shutdown()
