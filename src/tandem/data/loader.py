"""Batches of row numbers, in an order that depends on seed and epoch only, from any position."""

from typing import Any

import numpy as np

from tandem.errors import UserError


class Loader:
    """Endless batches over `num_rows` rows. Each epoch is one permutation; a batch that an epoch cannot fill goes on in the next one,
    so no row is left out or seen twice in an epoch.

    Args:
        num_rows: rows in the data set.
        batch_size: rows of every batch.
        seed: of the order.
        shuffle: a new order each epoch; else the rows' own order.
    """

    def __init__(self, num_rows: int, batch_size: int, seed: int = 0, shuffle: bool = True):
        assert num_rows > 0 and batch_size > 0
        self.num_rows, self.batch_size, self.seed, self.shuffle = num_rows, batch_size, seed, shuffle
        self.position = 0  # rows given out since the start; it alone says where we are
        self._cached: tuple[int, np.ndarray] | None = None

    def next(self) -> tuple[int, list[int]]:
        """(epoch of the batch's first row, its row numbers)."""
        first = self.position
        self.position += self.batch_size
        return first // self.num_rows, [self._row_at(position) for position in range(first, self.position)]

    def batches_in(self, epochs: int) -> int:
        """Batches, from the start, after which every row was given out `epochs` times."""
        return -(-epochs * self.num_rows // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {"num_rows": self.num_rows, "seed": self.seed, "shuffle": self.shuffle, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. The batch size may differ; rows, seed and shuffling must not, or the order would be another."""
        for key in ("num_rows", "seed", "shuffle"):
            if state[key] != getattr(self, key):
                raise UserError(
                    f"the checkpoint's data order does not fit: {key} was {state[key]}, now {getattr(self, key)}",
                    "the rows that come next would not be those of the saved run",
                    "resume with the saved run's data files, trainer.seed and data.shuffle, or start anew with resume=never",
                )
        self.position = int(state["position"])

    def _row_at(self, position: int) -> int:
        epoch, index = divmod(position, self.num_rows)
        if not self.shuffle:
            return index
        if self._cached is None or self._cached[0] != epoch:
            self._cached = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.num_rows)
        return int(self._cached[1][index])
