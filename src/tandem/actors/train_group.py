"""The training ranks as one. Every wait has a limit and hands on the other side's own error."""

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import ray

from tandem.actors.train_rank import TrainRank
from tandem.actors.waiting import wait
from tandem.config.schema import Config
from tandem.data.types import Sequence
from tandem.engine.export import Piece
from tandem.errors import RunError
from tandem.progress import Progress, unseen
from tandem.sync.types import Meeting

POLL_S = 0.05  # between questions whether a checkpoint has been written
OF_THE_STEP = ("grad_norm", "update_ok")  # the same on every rank


class TrainGroup:
    """All training ranks; each call runs on all of them."""

    def __init__(self, config: Config, seats: list[dict[str, Any]], run_dir: str, controller: Any | None = None):
        """Args: controller: an actor whose method `advanced` is told how far a call is; by rank 0, as every rank has as much to do."""
        self.config, self.timeout_s = config, config.trainer.timeout_s
        self.lock = threading.RLock()  # calls of two threads must not reach the ranks in different orders: their collectives would mix
        actor = ray.remote(TrainRank)
        self.ranks = [actor.options(**seat).remote(config, rank, run_dir, None if rank else controller) for rank, seat in enumerate(seats)]

    def places(self) -> list[tuple[str, list[str]]]:
        """(node, ids of its devices) of each rank."""
        return self._all("starting the training ranks", "place")

    def start(self, model_path: str, banned_token_ids: list[int]) -> None:
        [(address, port)] = wait(
            [self.ranks[0].address.remote(self.config.cluster.master_port)], self.timeout_s, "starting the training ranks"
        )
        self.nodes = [node for node, _ in self.places()]
        self.address, self.port = address, port
        self._all("loading the model", "start", address, port, len(self.ranks), model_path, banned_token_ids)

    def meeting(self, name: str, timeout_s: float) -> Meeting:
        """Where all ranks and an engine join as the group `name`."""
        return Meeting(self.address, self.port, name, len(self.ranks), timeout_s)

    def _all(self, what: str, method: str, *args: Any) -> list[Any]:
        with self.lock:
            return wait([getattr(rank, method).remote(*args) for rank in self.ranks], self.timeout_s, what)

    def start_optimizer(self, lr: float, weight_decay: float) -> None:
        self._all("making the optimizer", "start_optimizer", lr, weight_decay)

    def offload(self, *, parameters: bool) -> None:
        """Free device memory: gradients and optimizer, and the parameters if asked. Nothing without `trainer.offload`."""
        if self.config.trainer.offload:
            self._all("offloading", "offload", parameters)

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

    def update(self, sequences: Seq[Sequence], *, lr: float, supervised: bool = False, kl_coef: float = 0.0) -> dict[str, float]:
        """One optimizer step. Metrics of the whole mini-batch, `grad_norm` before clipping."""
        metrics = merged(self._all("the update", "update", ray.put(list(sequences)), supervised, lr, kl_coef))
        if "routing/num_replayed" in metrics:
            metrics |= replayed(sequences, metrics.pop("routing/num_replayed"), metrics.pop("routing/num_changed"))
        return metrics

    def start_critic(self, lr: float, weight_decay: float) -> None:
        """A critic beside the policy, with the policy's present weights, and its optimizer."""
        self._all("making the critic", "start_critic", lr, weight_decay)

    def values(self, sequences: Seq[Sequence]) -> list[np.ndarray]:
        """[R] of each sequence: the value of the state in which each token of the response was chosen."""
        shares = self._all("the critic's values", "values", ray.put(list(sequences)))
        found = {index: values for share in shares for index, (values,) in share.items()}
        assert len(found) == len(sequences), "not every sequence was valued"
        return [found[index] for index in range(len(sequences))]

    def update_critic(self, sequences: Seq[Sequence], *, lr: float) -> dict[str, float]:
        """One optimizer step of the critic; metrics as of `update`, `critic/` before those of the optimizer."""
        metrics = merged(self._all("the critic's update", "update_critic", ray.put(list(sequences)), lr))
        return {f"critic/{name}" if name in OF_THE_STEP else name: value for name, value in metrics.items()}

    def see(self, path: Path) -> list[bool]:
        """Whether each rank's node has this file."""
        return self._all("looking at the run's folder", "sees", str(path))

    def begin_save(self, path: Path, *, optimizer: bool = True, critic: bool = False) -> Callable[[Progress], dict[str, str]]:
        """Have policy or critic, with optimizer or the model alone, copied into host memory; ranks then write while they go on training.

        Returns:
            A function that waits until all is written, on any thread, and returns every file in `path` and its checksum; it tells its
            argument how many of all ranks have written theirs.
        """
        self._all("copying what is saved", "begin_save", str(path), optimizer, critic)
        return lambda progress: self._saved(critic, progress)

    def _saved(self, critic: bool, progress: Progress) -> dict[str, str]:
        ends = time.monotonic() + self.timeout_s
        try:
            parts = self._poll_saved(self.ranks, critic, ends, progress)
            wait([self.ranks[0].conclude_save.remote([part.results for part in parts], critic)], self.timeout_s, "saving")
            parts += self._poll_saved(self.ranks[:1], critic, ends, unseen)
        finally:
            for rank in self.ranks:
                rank.end_save.remote(critic)
        return {name: digest for part in parts for name, digest in part.digests.items()}

    def _poll_saved(self, ranks: list[Any], critic: bool, ends: float, progress: Progress) -> list[Any]:
        """Each of these ranks' `Written`. They are asked without the lock, and answer between other calls."""
        told: list[Any] = [None] * len(ranks)
        while left := [index for index, one in enumerate(told) if one is None]:
            for index, one in zip(left, wait([ranks[index].saved.remote(critic) for index in left], self.timeout_s, "saving")):
                told[index] = one
            progress(len(told) - told.count(None), len(told))
            if None in told and time.monotonic() > ends:
                raise RunError(f"saving took longer than {self.timeout_s:.0f} s", "the disk is slow or hangs", "raise trainer.timeout_s")
            time.sleep(POLL_S if None in told else 0)
        return told

    def load(self, path: Path, digests: dict[str, str], *, optimizer: bool = True, critic: bool = False) -> None:
        """Fill model and optimizer, or the model alone, from files whose checksums are compared first. The optimizer has been started.

        Raises:
            UserError: a file has changed, or is missing on a node; names it.
        """
        self._all("reading the checkpoint", "verify", str(path), digests, len(self.ranks))
        self._all("loading the checkpoint", "load", str(path), optimizer, critic)

    def export(self, source: str, target: str) -> list[Piece]:
        """Write all trained tensors into the weight files of `target`, which are laid out like those of `source`."""
        return [piece for share in self._all("exporting", "export", source, target) for piece in share]

    def peak_flops(self) -> float | None:
        """Of the slowest device, a second, in the model's dtype; None where one is not known."""
        found = self._all("asking for the devices' peak", "peak_flops")
        return None if None in found else min(found)

    def memory(self) -> dict[str, int]:
        """Peaks over the ranks, bytes."""
        shares = self._all("reading memory", "memory")
        return {name: max(share[name] for share in shares) for name in shares[0]}


def merged(shares: list[dict[str, float]]) -> dict[str, float]:
    """Sums over the ranks of all metrics but those of the optimizer's step."""
    metrics: dict[str, float] = {}
    for share in shares:
        for name, value in share.items():
            if name not in OF_THE_STEP:
                metrics[name] = metrics.get(name, 0.0) + value
    return {**metrics, "grad_norm": shares[0]["grad_norm"], "update_ok": min(share["update_ok"] for share in shares)}


def replayed(sequences: Seq[Sequence], num_replayed: float, num_changed: float) -> dict[str, float]:
    """`routing/replayed_share` of all choices of experts, and `routing/changed_share`: those of the replayed that the trainer's router
    would have made otherwise.

    Raises:
        RunError: not every choice that the generator made was replayed, each once.
    """
    chosen = [sequence.experts for sequence in sequences if sequence.experts is not None]
    num_given = sum(int((experts[:, :, 0] >= 0).sum()) * experts.shape[2] for experts in chosen)
    if num_replayed != num_given:
        raise RunError(
            f"{num_replayed:.0f} choices of experts were replayed, the generator made {num_given}",
            "the trainer would learn from another model than the one that answered",
            "this is a bug: report it with the layout; rollout.router_replay=false goes on without",
        )
    return {
        "routing/replayed_share": num_given / sum(experts.size for experts in chosen),
        "routing/changed_share": num_changed / max(1, num_given),
    }
