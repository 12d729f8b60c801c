"""The machine: shared memory, limits, ports, disk, memory, the way to the hub."""

import os
import resource
import shutil
import socket
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from tandem.doctor.finding import Finding, State

GIB = 1 << 30
SHM = Path("/dev/shm")
MIN_SHM, MIN_DISK = 1 * GIB, 2 * GIB
MIN_FILES, GOOD_FILES = 1024, 65536
HEAD_PORTS = {6766: "Ray's head in docs/ascend.md", 8260: "Ray's dashboard there"}
HCCL_PORT = 16666


def machine_findings(device: str, folder: Path = Path()) -> list[Finding]:
    """Args: folder: where runs are written."""
    found = [shared_memory(), open_files(), disk(folder), Finding("memory", _gib(psutil.virtual_memory().total), "as `tandem plan` says")]
    if device == "npu":
        found += [port_finding(HCCL_PORT, "HCCL's own", "fault")]
    if device != "cpu":
        found += [port_finding(port, whose, "note") for port, whose in HEAD_PORTS.items()]
    return [*found, hub()]


def shared_memory(folder: Path = SHM) -> Finding:
    free = shutil.disk_usage(folder).free
    if free >= MIN_SHM:
        return Finding(str(folder), f"{_gib(free)} free", f"{_gib(MIN_SHM)} free")
    return Finding(
        str(folder),
        f"{_gib(free)} free",
        f"{_gib(MIN_SHM)} free",
        "fault",
        "weights and Ray's objects travel through it",
        "start the container with --shm-size 64g, or --ipc host",
    )


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = resource.RLIM_INFINITY in (soft, hard) or hard >= GOOD_FILES
    fix = f"ulimit -n {GOOD_FILES}" if good else f"start the container with --ulimit nofile={GOOD_FILES}"
    wanted = f"{GOOD_FILES} for a cluster"
    if soft == resource.RLIM_INFINITY or soft >= GOOD_FILES:
        return Finding("open files", "unlimited" if soft == resource.RLIM_INFINITY else str(soft), wanted)
    if soft < MIN_FILES:
        return Finding("open files", str(soft), f"{MIN_FILES} or more", "fault", "Ray's processes hold a connection to each other", fix)
    return Finding("open files", str(soft), wanted, "note", "enough for one machine; Ray asks for more in a cluster", fix)


def disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    at = str(folder.resolve())
    if not os.access(folder, os.W_OK):
        return Finding(
            "disk", f"{at} is not writable", "writable", "fault", "runs are written there", "cd to another folder, or set run_dir"
        )
    if free < MIN_DISK:
        return Finding(
            "disk",
            f"{_gib(free)} free in {at}",
            f"{_gib(MIN_DISK)} free",
            "fault",
            "checkpoints and the exported model are written there",
            "make room, or set run_dir",
        )
    return Finding("disk", f"{_gib(free)} free in {at}", "14 bytes a parameter and checkpoint (bfloat16)")


def port_finding(port: int, whose: str, state: State) -> Finding:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("0.0.0.0", port))
        except OSError as error:
            fix = (
                "end the process that listens there" if state == "fault" else "fine if that is your Ray head; else take another port for it"
            )
            return Finding(f"port {port}", os.strerror(error.errno or 0), f"free: {whose}", state, "two listeners cannot share a port", fix)
    return Finding(f"port {port}", "free", f"free: {whose}")


def hub(timeout_s: float = 3.0) -> Finding:
    """The way to the hub matters only for what is not here yet, so it is never a fault."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Finding(
            "hub", "HF_HUB_OFFLINE is set", "local folders", "note", "nothing is downloaded", "have model and data in local folders"
        )
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=timeout_s).close()
    except urllib.error.HTTPError as error:  # it answered
        return Finding("hub", f"{constants.ENDPOINT} answers {error.code}", "reachable")
    except OSError as error:
        return Finding(
            "hub",
            f"{constants.ENDPOINT}: {getattr(error, 'reason', error)}",
            "reachable",
            "note",
            "models and data cannot be downloaded",
            "have them in local folders, or set HF_ENDPOINT to a mirror",
        )
    return Finding("hub", f"{constants.ENDPOINT} answers", "reachable")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
