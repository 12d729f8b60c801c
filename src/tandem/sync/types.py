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
    """Some of the bytes of a training rank's bucket memory: those of `entries`, for weights of `version`.

    The memory is a file in shared memory, `path`, or the rank's device memory, which others of the node open by its `handle`. Neither: the
    rank `sender` sends the bytes.
    """

    version: int
    entries: tuple[TensorEntry, ...]
    path: str = ""
    handle: bytes = b""
    sender: int = -1


@dataclass(frozen=True)
class Meeting:
    """Where all training ranks and the first worker of one engine find one another: in the store that the training ranks met in.

    Attributes:
        name: of this group; another one each time that it is made anew.
        num_trainers: ranks 0 to num_trainers - 1; the engine is the last one.
        timeout_s: longest wait of a training rank for the engine.
    """

    address: str
    port: int
    name: str
    num_trainers: int
    timeout_s: float
