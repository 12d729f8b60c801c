"""Bytes of the tensors that are alive: every storage that an operation made, counted from then until it is freed."""

import weakref
from collections.abc import Iterable

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Of the storages behind the tensors, each once."""
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())


class LiveBytes(TorchDispatchMode):
    """`now` and `peak` count storages made while it is on; those behind `known` tensors never."""

    def __init__(self, known: Iterable[Tensor]):
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, weakref.ref | None] = {x.untyped_storage()._cdata: None for x in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self._add(x.untyped_storage())
        return result

    def _add(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return

        def freed(_) -> None:
            self.now -= size
            del self._seen[key]

        self._seen[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)
