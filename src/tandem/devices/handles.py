"""Memory of a device that another process of the node opens: by the handles of torch's own multiprocessing.

CPU memory has them too: a file in shared memory that torch makes and removes.
"""

import os
import pickle
from multiprocessing.reduction import ForkingPickler
from types import ModuleType

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from tandem.errors import RunError

_DEVICE_ARGUMENT = 6  # of rebuild_cuda_tensor and rebuild_npu_tensor: the number of the device


def share(device: ModuleType, data: Tensor) -> bytes:
    """A handle of `data`, which must outlive every reader.

    Args:
        device: a module of tandem.devices, the tensor's.
    """
    if device.NAME == "cpu":
        torch.multiprocessing.set_sharing_strategy("file_system")  # the other strategy hands descriptors to children only
    function, arguments = reductions.reduce_tensor(data)
    index, visible = data.device.index or 0, _visible(device)
    return bytes(ForkingPickler.dumps((visible[index] if visible else str(index), function, arguments)))


def open_shared(device: ModuleType, handle: bytes) -> Tensor:
    """The tensor of `share`, made by another process of this run.

    Raises:
        RunError: its GPU is not visible here.
    """
    owner, function, arguments = pickle.loads(handle)
    if device.NAME == "gpu":  # CUDA opens it as the owner's device, which must be visible, and copies from there
        visible = _visible(device)
        if visible and owner not in visible:
            raise RunError(
                f"the memory of GPU {owner} cannot be opened: visible here are {', '.join(visible)}",
                "weights go from device to device within a node",
                "set sync.transport=shared_memory",
            )
        arguments = _of_device(arguments, visible.index(owner) if visible else int(owner))
    elif device.NAME == "npu":  # CANN maps it into the reader's
        arguments = _of_device(arguments, torch.npu.current_device())
    tensor: Tensor = function(*arguments)
    return tensor


def _of_device(arguments: tuple, index: int) -> tuple:
    return (*arguments[:_DEVICE_ARGUMENT], index, *arguments[_DEVICE_ARGUMENT + 1 :])


def _visible(device: ModuleType) -> list[str]:
    """What the machine calls the devices that are 0, 1, ... here; empty where all are visible, by the machine's own numbers."""
    listed = os.environ.get(device.VISIBLE_DEVICES_VARIABLE, "") if device.VISIBLE_DEVICES_VARIABLE else ""
    return [part.strip() for part in listed.split(",")] if listed else []
