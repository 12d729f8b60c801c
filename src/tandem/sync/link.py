"""Bytes from a training rank to one engine by the device's collective library: gloo, NCCL, HCCL. In a group beside all others."""

from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore

from tandem.sync.types import Meeting

# An engine waits for as long as the ranks send to others before it: whoever asked it to has a limit, and ends it.
ENGINE_TIMEOUT = timedelta(days=1)


class Link:
    """Collective: returns once all have come.

    Args:
        device: a module of tandem.devices.
        rank: of a trainer; None: the engine.
    """

    def __init__(self, device, meeting: Meeting, rank: int | None):
        self._device, self._engine = device, meeting.num_trainers
        timeout = ENGINE_TIMEOUT if rank is None else timedelta(seconds=meeting.timeout_s)
        store = TCPStore(meeting.address, meeting.port, is_master=False, wait_for_workers=False, timeout=timeout)
        place = self._engine if rank is None else rank
        self._group = device.process_group(PrefixStore(f"tandem/{meeting.name}", store), place, meeting.num_trainers + 1, timeout)

    def send(self, data: Tensor) -> None:
        """To the engine; returns when `data` may be written to again."""
        self._group.send([data], self._engine, 0).wait()
        self._device.synchronize()

    def receive(self, num_bytes: int, sender: int) -> Tensor:
        """[num_bytes] uint8 on this process's device, from a training rank."""
        data = torch.empty(num_bytes, dtype=torch.uint8, device=self._device.current())
        self._group.recv([data], sender, 0).wait()
        return data
