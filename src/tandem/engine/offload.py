"""Move a rank's tensors to host memory and back, in place: every view of a storage stays valid and gets its bytes again.

Gradients are not kept: they are zero when they come back, as before every update.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from tandem.engine.host_adam import HostAdamW


class Offloader:
    """The storages of some tensors, on the device or in host memory.

    Args:
        tensors: of the device; those that share a storage count once.
        keep: False: the contents may be forgotten, and come back as zeros.
        without: its storages are left to it.
    """

    def __init__(self, tensors: Iterable[Tensor], *, keep: bool = True, without: "Offloader | None" = None):
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors if tensor.numel()}
        for storage in without.storages if without else ():
            storages.pop(storage.data_ptr(), None)
        self.storages, self.keep = list(storages.values()), keep
        self._sizes = [storage.nbytes() for storage in self.storages]
        self._host: list[Tensor] = []
        self.is_out = False

    @property
    def num_bytes(self) -> int:
        """What the device has back while they are out."""
        return sum(self._sizes)

    def out(self) -> None:
        """Copy to the host and free the device's memory; nothing when that has happened."""
        if self.is_out:
            return
        if self.keep:
            self._host = [_bytes_of(storage).to("cpu", copy=True) for storage in self.storages]
        for storage in self.storages:
            storage.resize_(0)
        self.is_out = True

    def back(self) -> None:
        """Allocate on the device and copy back; nothing when they are there."""
        if not self.is_out:
            return
        for index, (storage, size) in enumerate(zip(self.storages, self._sizes)):
            storage.resize_(size)
            if self.keep:
                _bytes_of(storage).copy_(self._host[index])
            else:
                _bytes_of(storage).zero_()
        self._host, self.is_out = [], False


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)  # type: ignore[call-overload]


def buffers(chunks: list) -> Iterator:
    """Megatron's contiguous buffers of parameters and gradients of wrapped model chunks."""
    for chunk in chunks:
        yield from chunk.buffers
        yield from chunk.expert_parallel_buffers


def parameter_tensors(chunks: list) -> Iterator[Tensor]:
    """Parameters; those that are trained are views of Megatron's buffers."""
    for chunk in chunks:
        yield from (parameter.data for parameter in chunk.module.parameters())


def gradient_tensors(chunks: list) -> Iterator[Tensor]:
    yield from (buffer.grad_data for buffer in buffers(chunks))


def optimizer_tensors(optimizer) -> Iterator[Tensor]:
    """Master weights and moments that the device holds; with fp32 parameters the master weights are the parameters themselves. None with
    `optimizer.on_cpu`."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner: Optimizer = part.optimizer
        if isinstance(inner, HostAdamW):
            continue
        for group in inner.param_groups:
            yield from (parameter.data for parameter in group["params"])
        for state in inner.state.values():
            yield from (value for value in state.values() if torch.is_tensor(value) and value.dim() > 0)
