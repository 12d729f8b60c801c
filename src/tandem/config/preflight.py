"""What must hold on this machine before anything heavy starts: model, data, ports, shared memory, the run's folder. Seconds, no torch."""

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tandem.config.checkpointfolder import differences, find_checkpoint, newest_in
from tandem.config.folders import cache_dir
from tandem.config.modelfolder import check_model
from tandem.config.schema import Config
from tandem.errors import UserError

Task = Literal["train", "sft", "eval", "demo", "rollout-only", "train-only"]
SHM = Path("/dev/shm")
RUNNING_CLUSTER = "auto"  # the address of whatever cluster runs here
LOOPBACK = ("127.0.0.1", "localhost")
DEFAULT_CPU_OBJECT_STORE = 256 << 20


def preflight(config: Config, task: Task, check_files: Callable[[list[str], bool], object]) -> None:
    """Raises UserError for the first thing that is missing.

    Args:
        check_files: tandem.data's look at the rows of some files, and whether each has the response that supervised steps learn.
    """
    check_run_dir(config, task)
    check_cache(config)
    check_sources(config, task)
    if config.model.path:
        check_model(config.model.path, config.parallel, config.rollout.router_replay)
    check_resume(config, task)
    check_cluster(config)
    check_address(config.cluster.address)
    check_shared_memory(shared_memory_needed(config))
    lists = (config.data.train_files, config.data.val_files, config.warm_start.val_files)
    supervised = task != "eval" and config.warm_start.max_steps > 0
    held_out = config.warm_start.val_files or ([] if config.prepare == "demo" else config.data.val_files)  # the demo makes its own
    learned = [config.data.train_files, held_out] if supervised else []
    for files in dict.fromkeys(tuple(files) for files in lists if files):
        check_files(list(files), list(files) in learned)


def check_cache(config: Config) -> None:
    """What the demo makes for itself is kept in the cache, which must be writable."""
    if config.prepare != "demo":
        return
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"cannot write the cache {folder}", str(error), "set XDG_CACHE_HOME to a folder you can write") from error


def check_sources(config: Config, task: Task) -> None:
    """A run needs something to do, and a model and rows, unless its recipe makes its own."""
    if task == "sft" and not config.warm_start.max_steps:
        raise UserError(
            "warm_start.max_steps = 0", "`sft` takes that many steps, so nothing would be learned", "set warm_start.max_steps=100"
        )
    if config.prepare == "demo":
        return
    needed = "data.val_files" if task == "eval" else "data.train_files"
    given = config.data.val_files if task == "eval" else config.data.train_files
    if not given:
        raise UserError(f"{needed} is empty", f"`{task}` has no rows to work on", f"give one or more parquet files: {needed}=FILE.parquet")
    if not config.model.path:
        raise UserError("model.path is empty", "there is no model to start from", "set model.path=FOLDER, or a hub name")


def check_resume(config: Config, task: Task) -> None:
    """What is to be gone on with is there, whole as far as sizes tell, and of a run with fitting settings."""
    if task not in ("train", "demo"):
        if config.resume != "never":
            raise UserError(f"resume = {config.resume} with `{task}`", "only a training run is gone on with", "leave resume=never")
        return
    checkpoint = find_checkpoint(config.resume, Path(config.run_dir).absolute())
    if checkpoint:
        differences(checkpoint.state, config)


def check_cluster(config: Config) -> None:
    cluster = config.cluster
    if config.trainer.nnodes > 1 and not cluster.address and config.device != "cpu":
        raise UserError(
            f"trainer.nnodes = {config.trainer.nnodes} without a cluster",
            "a cluster started here has this machine only",
            "start Ray on every node and set cluster.address=HEAD:PORT",
        )
    check_port("cluster.master_port", cluster.master_port, "")
    check_port("cluster.dashboard_port", cluster.dashboard_port, "127.0.0.1")


def check_address(address: str, timeout_s: float = 5.0) -> None:
    """Raises UserError when nothing listens at HOST:PORT: Ray itself would wait for minutes. An empty address is none, nor is `auto`."""
    if address in ("", RUNNING_CLUSTER):
        return
    host, _, port = address.rpartition(":")
    fix = "start its head with `ray start --head --port PORT`, or leave cluster.address empty for a cluster on this machine"
    if not host or not port.isdigit():
        raise UserError(f"cluster.address = {address}", "it must be HOST:PORT, or auto", fix)
    for place in [host, *([own_address()] if host in LOOPBACK else [])]:
        try:
            socket.create_connection((place, int(port)), timeout_s).close()
        except (OSError, OverflowError) as error:
            own = "" if place == host else f"; Ray takes {place}, this machine's address, for {host}, and nothing listens there"
            raise UserError(f"no Ray cluster at cluster.address = {address}", f"{error}{own}", fix) from error


def own_address() -> str:
    """This machine's address on the way out, as Ray finds it; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 80))
        except OSError:  # no way out: Ray takes loopback then
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def check_port(key: str, port: int, host: str) -> None:
    """Raises UserError when a listener cannot have the port; 0 is left to the system."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that only waits for late packets is free
        try:
            listener.bind((host, port))
        except OSError as error:
            why = "in use" if error.errno == errno.EADDRINUSE else f"not available ({os.strerror(error.errno or 0)})"
            raise UserError(
                f"port {port} is {why}", f"{key} = {port} must be free", f"choose another port, or {key}=0 for a free one"
            ) from error


def shared_memory_needed(config: Config) -> int:
    """Bytes on a node: Ray's object store (where its size is known beforehand) and a bucket of weights of each rank that publishes."""
    store = config.cluster.object_store_bytes
    if not store and config.device in ("cpu", "auto"):
        store = DEFAULT_CPU_OBJECT_STORE
    parallel = config.parallel
    publishers = min(parallel.pp * parallel.ep, config.trainer.devices_per_node)  # one of each stage and expert shard
    buckets = publishers * config.sync.bucket_bytes if config.sync.transport == "shared_memory" else 0
    return (0 if config.cluster.address else store) + buckets


def check_shared_memory(needed: int, folder: Path = SHM) -> None:
    """Raises UserError when `folder` has fewer than `needed` free bytes."""
    if not folder.is_dir():
        raise UserError(
            f"no {folder}", "weights travel between trainer and generator through it", "run on Linux with shared memory mounted"
        )
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"too little shared memory: {folder} has {_gib(free)} free, the run needs {_gib(needed)}",
            "Ray's object store (cluster.object_store_bytes) and the buckets of weights (sync.bucket_bytes) live there",
            f"give the container --shm-size={-(-needed * 5 // 4 >> 30)}g or more, or lower these two settings",
        )


def check_run_dir(config: Config, task: Task) -> None:
    """The folder can be written, and holds no other run that this one would mix with."""
    folder = Path(config.run_dir).absolute()
    parent = next(place for place in (folder, *folder.parents) if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write run_dir = {config.run_dir}", f"{parent} is not a folder one can write to", "set another run_dir")
    if task != "eval" and config.resume == "never" and ((folder / "metrics.jsonl").is_file() or newest_in(folder)):
        raise UserError(
            f"{folder} already holds a run", "it would be started again on top", "go on with it by resume=auto, or set another run_dir"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"
