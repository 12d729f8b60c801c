"""The only room that knows which accelerator this is. `cpu`, `cuda` and `npu` offer the same names; `detect` picks one and says why."""

import importlib.util
import os
from collections.abc import Mapping
from types import ModuleType

from tandem.devices import cpu, cuda, npu
from tandem.errors import UserError

DEVICES: dict[str, ModuleType] = {"npu": npu, "gpu": cuda, "cpu": cpu}


def detect(requested: str = "auto") -> tuple[ModuleType, str]:
    """The device module to use and the reason for the choice.

    Order: `requested` (config key `device`), the environment variable DEVICE, then `torch_npu`, CUDA, CPU.

    Raises:
        UserError: an unknown name, or a device that was asked for and is not here.
    """
    if named := os.environ.get("DEVICE", "").lower():
        check_name(named)  # also where a recipe decides: what is misspelt was meant to decide
    if requested in ("", "auto"):
        requested = named
        reason = f"DEVICE={requested} asks for it"
    else:
        reason = f"device={requested} asks for it"
    if requested:
        check_name(requested)
        missing = DEVICES[requested].missing()
        if missing:
            raise UserError(
                f"device {requested} is not usable here", missing, "install its stack, or choose another with DEVICE=npu|gpu|cpu"
            )
        return DEVICES[requested], reason
    return find()


def process_environment(device: ModuleType, num_threads: int, exported: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of every process of a run, set before torch is imported there. An exported value wins over a default of the device."""
    return {name: exported.get(name, value) for name, value in device.DEFAULT_ENVIRONMENT.items()} | device.environment(num_threads)


def check_name(name: str) -> None:
    """Raises UserError unless `name` is that of a device."""
    if name not in DEVICES:
        raise UserError(
            f"unknown device {name!r}", "Tandem runs on npu, gpu and cpu", "set DEVICE (or device=) to npu, gpu or cpu, or leave it out"
        )


def likely() -> str:
    """The device named in the environment variable DEVICE, or what this machine looks like without asking torch.

    Raises:
        UserError: DEVICE names none.
    """
    if named := os.environ.get("DEVICE", "").lower():
        check_name(named)
        return named
    if importlib.util.find_spec("torch_npu") is not None:
        return npu.NAME
    return cuda.NAME if cuda.has_driver() else cpu.NAME


def find() -> tuple[ModuleType, str]:
    """The best device of this machine and the reason, whatever was asked for. Imports torch only where there is an accelerator."""
    if importlib.util.find_spec("torch_npu") is not None and not npu.missing():
        return npu, "torch_npu is installed and sees a device"
    if not cuda.missing():
        return cuda, "torch sees a CUDA device"
    return cpu, "neither torch_npu nor a CUDA device was found"
