"""What an algorithm remembers from step to step, and a checkpoint keeps."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class AlgorithmState:
    kl_coef: float
    num_skipped: int = 0  # optimizer steps that were not taken, gradients being not finite
    num_skipped_in_a_row: int = 0

    def count(self, taken: bool) -> None:
        """One optimizer step, taken or skipped."""
        self.num_skipped += not taken
        self.num_skipped_in_a_row = 0 if taken else self.num_skipped_in_a_row + 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "AlgorithmState":
        """The state that `to_dict` wrote."""
        return cls(**values)
