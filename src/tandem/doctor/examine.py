"""All checks in one list."""

import ctypes.util
import platform
from functools import cache
from pathlib import Path

from tandem.devices import DEVICES
from tandem.doctor.ascend import cann_version, driver_findings
from tandem.doctor.finding import Finding
from tandem.doctor.imports import import_findings
from tandem.doctor.machine import machine_findings
from tandem.doctor.packages import package_findings, trees
from tandem.doctor.stacks import StackName
from tandem.doctor.variables import variable_findings
from tandem.doctor.versions import version


@cache
def found_version(component: str) -> str | None:
    """Of a distribution, or of `python` or `cann`."""
    if component == "python":
        return platform.python_version()
    return cann_version() if component == "cann" else version(component)


def examine(device: str, stack: StackName, *, imports: bool = True) -> list[Finding]:
    """What is here against what a run on `device` needs.

    Args:
        imports: load the libraries too, in other processes: half a minute.
    """
    found = package_findings(device, stack, found_version) + trees()
    if device == "npu":
        found += driver_findings()
    if device == "gpu":
        found.append(_nvidia_driver())
    if missing := DEVICES[device].missing():
        found.append(Finding(f"device {device}", "not usable", "usable", "fault", missing, "see the faults above"))
    else:
        found.append(Finding(f"device {device}", "usable", "usable"))
    found += variable_findings(device) + machine_findings(device)
    return found + (import_findings(device) if imports else [])


def _nvidia_driver() -> Finding:
    file = Path("/proc/driver/nvidia/version")
    if ctypes.util.find_library("cuda") or file.is_file():
        return Finding("NVIDIA driver", file.read_text().splitlines()[0].split("  ")[1] if file.is_file() else "found", "any")
    return Finding(
        "NVIDIA driver", "not found", "any", "fault", "without it no GPU answers", "install it; start the container with --gpus all"
    )
