"""The Ray actors: a training rank and a generator. Thin: each sets its process up, then hands calls to `Engine` or `RolloutEngine`.

Nothing heavy is imported at the top: an actor's environment must be set before torch is.
"""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem.config.schema import Config
from tandem.data.types import Sequence
from tandem.rollout.types import Completion, Request
from tandem.sync.types import Bucket


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


class TrainRank:
    """One training process: one device."""

    def __init__(self, config: Config, rank: int, run_dir: str):
        from tandem import devices

        self.config, self.rank = config, rank
        self.device = devices.DEVICES[config.device]
        os.environ.update(self.device.environment(config.trainer.num_threads))
        log_to_file(Path(run_dir) / "logs" / f"train_rank_{rank}.log")
        self.engine: Any = None
        self._publication: Iterator[Bucket] | None = None

    def address(self, port: int) -> tuple[str, int]:
        """An address of this node and a port that is free now (`port` itself when it is not 0)."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", port))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def start(self, address: str, port: int, world_size: int, model_path: str, banned_token_ids: list[int]) -> None:
        """Join the other ranks and load this rank's part of the model."""
        self.device.set_device(0)
        self.device.prepare_megatron()
        import torch

        from tandem.engine import groups
        from tandem.engine.engine import Engine

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

    def scores(self, sequences: list[Sequence], temperature: float, reference: bool, masked: bool) -> dict[int, Any]:
        return self.engine.scores(sequences, temperature=temperature, reference=reference, masked=masked)

    def update(self, sequences: list[Sequence], supervised: bool, lr: float) -> dict[str, float]:
        return self.engine.update(sequences, supervised=supervised, lr=lr)

    def next_bucket(self, version: int, prefix: str, begin: bool) -> Bucket | None:
        """The next bucket of this rank's share of the weights, None after the last. Asking for one frees the one before."""
        from tandem.sync.buckets import SHARED_MEMORY, BucketWriter

        if begin:
            writer = BucketWriter(SHARED_MEMORY, prefix, self.config.sync.bucket_bytes)
            self._publication = writer.write(self.engine.tensors(), version)
        assert self._publication is not None, "no publication has begun"
        return next(self._publication, None)

    def tensor_names(self) -> list[str]:
        """Names of all Hugging Face tensors that this rank publishes."""
        return [name for name, _ in self.engine.tensors()]

    def save(self, path: str) -> None:
        from tandem.engine import checkpoint

        checkpoint.save(self.engine, Path(path))

    def export(self, source: str, target: str) -> list[Any]:
        """Write this rank's share into the weight files of `target`; returns its `Piece`s."""
        from tandem.engine import export

        return export.write_share(self.engine, Path(source), Path(target))

    def memory(self) -> dict[str, int]:
        from tandem.devices import cpu

        return {"memory/device_peak_bytes": self.device.memory_peak_bytes(), "memory/host_peak_bytes": cpu.memory_peak_bytes()}


class Generator:
    """One vLLM engine with its tensor-parallel workers."""

    def __init__(self, config: Config, index: int, run_dir: str):
        from tandem.rollout.engine import engine_environment

        self.config, self.index = config, index
        os.environ.update(engine_environment(config.rollout, config.device))
        log_to_file(Path(run_dir) / "logs" / f"generator_{index}.log")
        self.engine: Any = None

    def start(self, model_path: str, banned_token_ids: list[int], stop_token_ids: list[int]) -> None:
        from tandem.rollout.engine import RolloutEngine

        config = self.config
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

    def generate(self, requests: list[Request], version: int, controller: Any) -> list[list[Completion]]:
        """`controller` hears about finished samples while this runs."""
        return self.engine.generate(
            requests, version, on_progress=lambda done, total: controller.generated.remote(self.index, done, total) if controller else None
        )

    def begin_update(self, version: int) -> None:
        self.engine.begin_update(version)

    def load_bucket(self, bucket: Bucket) -> None:
        self.engine.load_bucket(bucket)

    def finish_update(self, version: int, expected_names: list[str]) -> Any:
        return self.engine.finish_update(version, expected_names)

    def shutdown(self) -> None:
        if self.engine is not None:
            self.engine.shutdown()
