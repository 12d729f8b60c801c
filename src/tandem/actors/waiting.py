"""Waiting for actors: every wait has a limit, and hands on the other side's own error."""

import errno
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from tandem.actors import cluster
from tandem.errors import RunError, UserError
from tandem.progress import Progress

# Cheapest first, as `tandem plan` tries them.
MORE_MEMORY = (
    "set trainer.recompute=full, a smaller batch.max_tokens_per_device, trainer.offload=true or optimizer.on_cpu=true, "
    "or a smaller rollout.memory_share where generators share the device; `tandem plan` says what each saves"
)
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # full, over its quota, read-only
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # of CUDA and CANN, of torch on a CPU


def is_out_of_memory(cause: BaseException) -> bool:
    """Whether a device or the host had no room for a tensor. By name and words: each backend raises its own, and torch is not here."""
    if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":
        return True
    return isinstance(cause, RuntimeError) and any(words in str(cause) for words in _OUT_OF_MEMORY)


def wait(futures: list[Any], timeout_s: float, what: str, progress: Progress | None = None) -> list[Any]:
    """Results in order, or the first failure as it happened on the other side.

    Args:
        progress: told how many of all are there whenever there is one more.

    Raises:
        RunError: the limit passed, or an actor's process is gone.
        UserError: raised over there.
    """
    ends = time.monotonic() + timeout_s
    try:
        for num in range(1, len(futures)) if progress else ():
            ready, _ = ray.wait(futures, num_returns=num, timeout=max(ends - time.monotonic(), 0))
            ray.get(ready)  # a failure is told at once
            progress(len(ready), len(futures))
        return ray.get(futures, timeout=max(ends - time.monotonic(), 0))
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
        if isinstance(error.cause, OSError) and error.cause.errno in DISK:
            raise RunError(
                f"{what}: a file could not be written", told[0], "make room on the disk of the run's folder, or set another run_dir"
            ) from error
        if is_out_of_memory(error.cause):
            raise RunError(f"{what} ran out of memory", told[0], MORE_MEMORY) from error
        raise RunError(
            f"{what} failed: {type(error.cause).__name__}: {told[0]}", "this is not one of the failures Tandem knows", "see the traceback"
        ) from error
    except RayActorError as error:
        raise RunError(
            f"a process died during {what}",
            cluster.cause_of_death(error),
            "see logs/ for its last lines; out of memory is the usual reason",
        ) from error
