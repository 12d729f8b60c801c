"""What of Ascend's own is on this machine: CANN, the driver, the device files. Read from files; nothing is imported."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tandem.doctor.finding import Finding

CANN_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
INSTALL_FILES = (
    "*/ascend_toolkit_install.info",
    "ascend_toolkit_install.info",
    "*/ascend_cann_toolkit_install.info",
    "version.info",
    "version.cfg",
)


def cann_version(root: Path = Path("/usr/local/Ascend"), env: Mapping[str, str] = os.environ) -> str | None:
    """Of the CANN toolkit whose variables are set, else of the one that is installed under `root`; None when there is none."""
    folders = [Path(env[name]) for name in CANN_VARIABLES if env.get(name)]
    folders += [root / "ascend-toolkit" / "latest", *sorted(root.glob("cann-*"), reverse=True)]
    for folder in folders:
        for pattern in INSTALL_FILES:
            for file in sorted(folder.glob(pattern)):
                if found := re.search(r"^version\W+(\d+(?:\.\w+)+)", file.read_text(errors="replace"), re.IGNORECASE | re.MULTILINE):
                    return found[1]
        if found := re.fullmatch(r"cann-(\d+(?:\.\w+)+)", folder.name):
            return found[1]
    return None


def driver_findings(root: Path = Path("/usr/local/Ascend"), dev: Path = Path("/dev"), env: Mapping[str, str] = os.environ) -> list[Finding]:
    file = root / "driver" / "version.info"
    version = re.search(r"^Version=(\S+)", file.read_text(errors="replace"), re.MULTILINE) if file.is_file() else None
    num_devices = sum(bool(re.fullmatch(r"davinci\d+", path.name)) for path in dev.glob("davinci*"))
    sourced = any(env.get(name) for name in CANN_VARIABLES)
    mount = "start the container with the driver mounted (docs/ascend.md)"
    return [
        Finding("NPU driver", version[1], "any")
        if version
        else Finding("NPU driver", "not found", str(file), "fault", "without it no NPU answers", f"install it on the host; {mount}"),
        Finding("NPU devices", str(num_devices), "1 or more")
        if num_devices
        else Finding("NPU devices", "none", "/dev/davinci*", "fault", "this machine, or this container, has no NPU", mount),
        Finding("CANN environment", "set", "set")
        if sourced
        else Finding(
            "CANN environment",
            "not set",
            CANN_VARIABLES[0],
            "fault",
            "torch_npu cannot load its libraries",
            "source /usr/local/Ascend/ascend-toolkit/set_env.sh",
        ),
    ]
