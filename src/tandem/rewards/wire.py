"""Messages between the pool and its workers: 4 bytes of length, big-endian, then that many bytes of JSON."""

import json
import struct
from typing import IO, Any

_LENGTH = struct.Struct(">I")


def send(pipe: IO[bytes], message: Any) -> None:
    """Raises:
    BrokenPipeError: nobody reads.
    """
    body = json.dumps(message, default=str).encode()
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next message; waits for it.

    Raises:
        EOFError: the other side has closed, between messages or inside one.
    """
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return json.loads(_exactly(pipe, length))


def _exactly(pipe: IO[bytes], num_bytes: int) -> bytes:
    data = pipe.read(num_bytes)
    if len(data) < num_bytes:
        raise EOFError("the other side of the pipe is gone")
    return data
