"""What every Ray actor of ours does with its process first. Nothing heavy is imported: the environment must be set before torch is."""

import logging
import os
import sys
from pathlib import Path

from tandem.secrets import SecretlessFormatter


def log_to_file(path: Path) -> None:
    """Send this process's logging, standard output and standard error to a file, native libraries' included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SecretlessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def claimed_devices(device) -> list[str]:
    """Ids of the accelerators that Ray gave this actor; none on CPU."""
    import ray

    return list(ray.get_runtime_context().get_accelerator_ids().get(device.RAY_RESOURCE, []))


def see_only(device, ids: list[str]) -> None:
    """Let this process see these accelerators, as numbers 0, 1, ...; before torch is imported."""
    if device.VISIBLE_DEVICES_VARIABLE and ids:
        os.environ[device.VISIBLE_DEVICES_VARIABLE] = ",".join(ids)
