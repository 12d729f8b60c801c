"""What is said about a bucket of weights on its way from a trainer rank to a generator."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorEntry:
    """One Hugging Face tensor inside a bucket file, or a piece of one that is larger than a bucket."""

    name: str
    dtype: str  # as safetensors writes it: "F32", "BF16"
    shape: tuple[int, ...]  # of the whole tensor
    offset: int  # bytes from the start of the bucket
    num_bytes: int  # here
    checksum: str  # blake3 of the bytes here, hex; empty: not to be compared
    start: int = 0  # bytes of the tensor that came before
    is_last: bool = True  # no more of it follows


@dataclass(frozen=True)
class Bucket:
    """A file in shared memory holding the bytes of `entries`, for weights of `version`."""

    path: str
    version: int
    entries: tuple[TensorEntry, ...]
