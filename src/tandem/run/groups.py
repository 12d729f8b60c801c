"""The training ranks as one, and the generators as one. Every wait has a limit and hands on the other side's own error."""

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from tandem.config.schema import Config
from tandem.data.types import Prompt, Sequence
from tandem.engine.export import Piece
from tandem.errors import RunError, UserError
from tandem.rollout.types import Completion, SamplingParams, requests_of
from tandem.run import cluster
from tandem.run.workers import Generator, TrainRank


def wait(futures: list[Any], timeout_s: float, what: str) -> list[Any]:
    """Results in order, or the first failure as it happened on the other side.

    Raises:
        RunError: the limit passed, or an actor's process is gone.
        UserError: raised over there.
    """
    try:
        return ray.get(futures, timeout=timeout_s)
    except GetTimeoutError as error:
        raise RunError(
            f"{what} took longer than {timeout_s:.0f} s",
            "a process hangs or is much slower than expected",
            "see logs/; raise rollout.timeout_s or trainer.timeout_s",
        ) from error
    except RayTaskError as error:
        if isinstance(error.cause, UserError | RunError):
            raise error.cause from error
        told = str(error.cause).strip().splitlines() or ["no message"]
        raise RunError(
            f"{what} failed: {type(error.cause).__name__}: {told[0]}", "this is not one of the failures Tandem knows", "see the traceback"
        ) from error
    except RayActorError as error:
        raise RunError(
            f"a process died during {what}",
            cluster.cause_of_death(error),
            "see logs/ for its last lines; out of memory is the usual reason",
        ) from error


class TrainGroup:
    """All training ranks; each call runs on all of them."""

    def __init__(self, config: Config, device, groups: list[Any], run_dir: str):
        self.config, self.timeout_s = config, config.trainer.timeout_s
        world_size = config.trainer.nnodes * config.trainer.devices_per_node
        actor = ray.remote(TrainRank)
        self.ranks = [
            actor.options(**cluster.seat(groups, rank, config), name=None).remote(config, rank, run_dir) for rank in range(world_size)
        ]

    def start(self, model_path: str, banned_token_ids: list[int]) -> None:
        [(address, port)] = wait(
            [self.ranks[0].address.remote(self.config.cluster.master_port)], self.timeout_s, "starting the training ranks"
        )
        self._all("loading the model", "start", address, port, len(self.ranks), model_path, banned_token_ids)

    def _all(self, what: str, method: str, *args: Any) -> list[Any]:
        return wait([getattr(rank, method).remote(*args) for rank in self.ranks], self.timeout_s, what)

    def start_optimizer(self, lr: float, weight_decay: float) -> None:
        self._all("making the optimizer", "start_optimizer", lr, weight_decay)

    def keep_reference(self) -> None:
        self._all("keeping the reference weights", "keep_reference")

    def scores(
        self, sequences: Seq[Sequence], *, temperature: float, reference: bool = False, masked: bool = True
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(log-probs [R], entropies [R]) of each sequence's response."""
        shares = self._all("scoring", "scores", ray.put(list(sequences)), temperature, reference, masked)
        merged = {index: values for share in shares for index, values in share.items()}
        assert len(merged) == len(sequences), "not every sequence was scored"
        return [merged[index] for index in range(len(sequences))]

    def update(self, sequences: Seq[Sequence], *, lr: float, supervised: bool = False) -> dict[str, float]:
        """One optimizer step. Metrics of the whole mini-batch, `grad_norm` before clipping."""
        shares = self._all("the update", "update", ray.put(list(sequences)), supervised, lr)
        metrics: dict[str, float] = {}
        for share in shares:
            for name, value in share.items():
                if name not in ("grad_norm", "update_ok"):
                    metrics[name] = metrics.get(name, 0.0) + value
        return {**metrics, "grad_norm": shares[0]["grad_norm"], "update_ok": min(share["update_ok"] for share in shares)}

    def save(self, path: str) -> None:
        self._all("saving", "save", path)

    def export(self, source: str, target: str) -> list[Piece]:
        """Write all trained tensors into the weight files of `target`, which are laid out like those of `source`."""
        return [piece for share in self._all("exporting", "export", source, target) for piece in share]

    def memory(self) -> dict[str, int]:
        """Peaks over the ranks, bytes."""
        shares = self._all("reading memory", "memory")
        return {name: max(share[name] for share in shares) for name in shares[0]}


class GeneratorGroup:
    """All generators; prompts are dealt among them, all samples of a prompt on one, so that they share its prefix."""

    def __init__(self, config: Config, groups: list[Any], run_dir: str, controller: Any):
        self.config, self.timeout_s, self.controller = config, config.rollout.timeout_s, controller
        actor = ray.remote(Generator)
        devices = config.trainer.nnodes * config.trainer.devices_per_node
        self.engines = [
            actor.options(**cluster.seat(groups, index * config.rollout.tp % devices, config)).remote(config, index, run_dir)
            for index in range(config.rollout.replicas)
        ]

    def start(self, model_path: str, banned_token_ids: list[int], stop_token_ids: list[int]) -> None:
        wait(
            [engine.start.remote(model_path, banned_token_ids, stop_token_ids) for engine in self.engines],
            self.timeout_s,
            "starting the generators",
        )

    def generate(self, prompts: Seq[Prompt], sampling: SamplingParams, version: int) -> list[list[Completion]]:
        """[prompts][num_samples], in order; refused by a generator that does not hold `version`."""
        num, requests = len(self.engines), requests_of(prompts, sampling)
        shares = [requests[index::num] for index in range(num)]
        futures = [engine.generate.remote(share, version, self.controller) for engine, share in zip(self.engines, shares) if share]
        results = wait(futures, self.timeout_s, "the rollout")
        completions: list[list[Completion]] = [[] for _ in prompts]
        for index, share in enumerate(results):
            completions[index::num] = share
        return completions

    def shutdown(self) -> None:
        wait([engine.shutdown.remote() for engine in self.engines], 30, "stopping the generators")
