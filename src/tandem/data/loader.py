"""Batches of row numbers, in an order that depends on seed, epoch and the sources' weights only, from any position."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tandem.data.mix import shares
from tandem.errors import UserError


class Loader:
    """Endless batches over `num_rows` rows. Each epoch is one permutation; a batch that an epoch cannot fill goes on in the next one,
    so no row is left out or seen twice in an epoch.

    With weights an epoch is as long, but each source has its share of it, and goes through its own rows at its own pace: all of them once
    before any of them again.

    Args:
        num_rows: rows in the data set.
        batch_size: rows of every batch.
        seed: of the order.
        shuffle: a new order each epoch; else the rows' own order.
        sources: of each row, when there are weights.
        weights: by source; empty: none.
    """

    def __init__(
        self,
        num_rows: int,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        *,
        sources: Sequence[str] = (),
        weights: dict[str, float] | None = None,
    ):
        assert num_rows > 0 and batch_size > 0
        self.num_rows, self.batch_size, self.seed, self.shuffle, self.weights = num_rows, batch_size, seed, shuffle, weights or {}
        self.position = 0  # rows given out since the start; it alone says where we are
        self._cached: tuple[int, np.ndarray] | None = None
        self._rows_of = [np.flatnonzero(np.asarray(sources) == name) for name in self.weights]
        self._shares = [*shares(num_rows, self.weights).values()]

    def next(self) -> tuple[int, list[int]]:
        """(epoch of the batch's first row, its row numbers)."""
        first = self.position
        self.position += self.batch_size
        return first // self.num_rows, [self._row_at(position) for position in range(first, self.position)]

    def batches_in(self, epochs: int) -> int:
        """Batches, from the start, after which every row was given out `epochs` times; with weights, that are as many rows."""
        return -(-epochs * self.num_rows // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """The exact place: seed, epoch and what was given out follow from it, and what was prefetched and not used is not in it."""
        state = {"num_rows": self.num_rows, "seed": self.seed, "shuffle": self.shuffle, "position": self.position}
        return state | ({"weights": self.weights} if self.weights else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. The batch size may differ; rows, seed, shuffling and weights must not: they make the order."""
        now = {"num_rows": self.num_rows, "seed": self.seed, "shuffle": self.shuffle, "weights": self.weights}
        for key, value in now.items():
            if (before := state.get(key, {})) != value:
                raise UserError(
                    f"the checkpoint's data order does not fit: {key} was {before}, now {value}",
                    "the rows that come next would not be those of the saved run",
                    "resume with the saved run's data files, data.weights, trainer.seed and data.shuffle, or start anew with resume=never",
                )
        self.position = int(state["position"])

    def _row_at(self, position: int) -> int:
        epoch, index = divmod(position, self.num_rows)
        if not self.shuffle and not self.weights:
            return index
        if self._cached is None or self._cached[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._cached = epoch, self._mixed(epoch, rng) if self.weights else rng.permutation(self.num_rows)
        return int(self._cached[1][index])

    def _mixed(self, epoch: int, rng: np.random.Generator) -> np.ndarray:
        """[num_rows]: the epoch's row numbers. Without shuffling the sources take turns as evenly as their shares allow."""
        rows = [self._next_of(source, epoch * share, share) for source, share in enumerate(self._shares)]
        turns = np.concatenate([(np.arange(share) + 0.5) / share for share in self._shares if share])
        order = rng.permutation(self.num_rows) if self.shuffle else np.argsort(turns, kind="stable")
        return np.concatenate(rows)[order]

    def _next_of(self, source: int, first: int, count: int) -> np.ndarray:
        """[count]: rows of one source, from its `first`-th on since the start of the run."""
        own = self._rows_of[source]
        passes = range(first // len(own), -(-(first + count) // len(own)))
        orders = [np.random.default_rng([self.seed, source, each, 1]).permutation(own) if self.shuffle else own for each in passes]
        start = first % len(own)
        return np.concatenate([*orders, own[:0]])[start : start + count]
