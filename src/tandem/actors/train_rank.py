"""The Ray actor of a training rank. Thin: it sets its process up, then hands calls to its `Engine`.

Nothing heavy is imported at the top: an actor's environment must be set before torch is.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem.actors.actor import claimed_devices, log_to_file, see_only
from tandem.config.schema import Config
from tandem.data.types import Sequence
from tandem.sync.shared_memory import shared_memory_prefix
from tandem.sync.types import Bucket, Meeting


class TrainRank:
    """One training process: one device."""

    def __init__(self, config: Config, rank: int, run_dir: str, controller: Any | None = None):
        """Args: controller: of rank 0, who hears how far its calls are."""
        from tandem import devices
        from tandem.actors.progress import PushedProgress

        self.config, self.rank, self.run_dir = config, rank, Path(run_dir)
        self.device = devices.DEVICES[config.device]
        os.environ.update(devices.process_environment(self.device, config.trainer.num_threads))
        see_only(self.device, claimed_devices(self.device))
        log_to_file(self.run_dir / "logs" / f"train_rank_{rank}.log")
        self.engine: Any = None
        self._progress = PushedProgress(controller)
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
        from tandem.sync.shared_memory import cleanup

        cleanup(shared_memory_prefix(self.run_dir))  # of a killed run; no rank has begun to publish
        torch.set_num_threads(self.config.trainer.num_threads)
        torch.use_deterministic_algorithms(self.config.trainer.deterministic)
        rendezvous = groups.Rendezvous(address, port, self.rank, world_size)
        groups.initialize(
            self.device, rendezvous, self.config.parallel, seed=self.config.trainer.seed, timeout_s=self.config.trainer.collective_timeout_s
        )
        self.engine = Engine(self.config, model_path, self.device, banned_token_ids, progress=self._progress)

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
        from tandem.sync.memory import DeviceMemory, shared_files
        from tandem.sync.shared_memory import SHARED_MEMORY

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
        from tandem.sync.digest import file_digest

        for name in sorted(digests)[self.rank :: num_ranks]:  # all ranks together compare each file once
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
        from tandem.actors.traces import Operations, Timeline

        self._profile = Operations(self.device), Timeline(f"rank_{self.rank}") if timeline else None

    def stop_profile(self, step: int) -> str:
        """Write the trace of this step; returns the path of its part of the timeline, empty without one."""
        assert self._profile is not None, "no profile has begun"
        (operations, timeline), self._profile = self._profile, None
        part = timeline.write(self.run_dir, step) if timeline else ""
        operations.write(self.run_dir, step, self.rank)
        return part

    def peak_flops(self) -> float | None:
        """Of its device, a second, in the model's dtype."""
        return self.device.peak_flops(self.config.model.dtype)

    def memory(self) -> dict[str, int]:
        from tandem.devices import cpu

        return {"memory/device_peak_bytes": self.device.memory_peak_bytes(), "memory/host_peak_bytes": cpu.memory_peak_bytes()}
