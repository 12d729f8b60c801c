"""What is said about a bucket of weights on its way from a trainer rank to a generator."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorEntry:
    """One Hugging Face tensor inside a bucket, or a piece of one that is larger than half a bucket file."""

    name: str
    dtype: str  # as safetensors writes it: "F32", "BF16"
    shape: tuple[int, ...]  # of the whole tensor
    offset: int  # bytes from the start of the file
    num_bytes: int  # here
    checksum: str  # blake3 of the bytes here, hex; empty: not to be compared
    start: int = 0  # bytes of the tensor that came before
    is_last: bool = True  # no more of it follows


@dataclass(frozen=True)
class Bucket:
    """Some of the bytes of a file in shared memory: those of `entries`, for weights of `version`."""

    path: str
    version: int
    entries: tuple[TensorEntry, ...]
