"""Process groups of a training rank."""

import datetime
import errno
import logging
import random
import socket
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.distributed import TCPStore

from tandem.config.schema import ParallelConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rendezvous:
    """Where the training ranks meet."""

    address: str
    port: int
    rank: int
    world_size: int


def initialize(device, rendezvous: Rendezvous, parallel: ParallelConfig, *, seed: int, timeout_s: float) -> None:
    """Join the world, build Megatron's groups, seed everything. `device.prepare_megatron()` has run before.

    Args:
        device: a module of tandem.devices.
        timeout_s: longest wait of one collective.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    torch.distributed.init_process_group(
        device.COLLECTIVE_BACKEND,
        store=_store(rendezvous, timeout),
        rank=rendezvous.rank,
        world_size=rendezvous.world_size,
        timeout=timeout,
    )
    initialize_model_parallel(parallel, seed=seed)


def _store(meeting: Rendezvous, timeout: datetime.timedelta) -> TCPStore:
    """Where all ranks find each other. The first listens on the rendezvous' address only; torch by itself would on every interface."""
    options: dict[str, Any] = {"world_size": meeting.world_size, "timeout": timeout}
    if meeting.rank == 0 and (listener := _listener(meeting)):
        options["master_listen_fd"] = listener.detach()  # the store closes it
    return TCPStore(meeting.address, meeting.port, is_master=meeting.rank == 0, **options)


def _listener(meeting: Rendezvous) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in meeting.address else socket.AF_INET
    try:
        return socket.create_server((meeting.address, meeting.port), family=family, backlog=2048)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        log.warning("the rendezvous listens on every interface: %s is not an address of this machine", meeting.address)
        return None


def initialize_model_parallel(parallel: ParallelConfig, *, seed: int) -> None:
    """Megatron's groups and all seeds, in a world that has been joined."""
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(
        parallel.tp,
        parallel.pp,
        virtual_pipeline_model_parallel_size=parallel.vpp or None,
        context_parallel_size=parallel.cp,
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.etp,
    )
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def is_reporter() -> bool:
    """Whether this rank holds the results of its data-parallel share: last pipeline stage, first tensor and context rank."""
    from megatron.core import parallel_state

    return (
        parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        and parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_context_parallel_rank() == 0
    )
