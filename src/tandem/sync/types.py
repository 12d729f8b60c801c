"""What is said about a bucket of weights on its way from a trainer rank to a generator."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorEntry:
    """One Hugging Face tensor inside a bucket file."""

    name: str
    dtype: str  # as safetensors writes it: "F32", "BF16"
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the bucket
    num_bytes: int
    checksum: str  # blake3 of the tensor's bytes, hex


@dataclass(frozen=True)
class Bucket:
    """A file in shared memory holding the bytes of `entries`, for weights of `version`."""

    path: str
    version: int
    entries: tuple[TensorEntry, ...]
