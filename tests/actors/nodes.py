"""A Ray cluster of several nodes on this machine, in a process of its own: python -m tests.actors.nodes NUM_NODES DEVICES RESOURCE."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def cluster_of(num_nodes: int, devices: int, resource: str) -> Iterator[str]:
    """The address of a cluster with `devices` of `resource` on each node."""
    command = [sys.executable, "-m", "tests.actors.nodes", str(num_nodes), str(devices), resource]
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=env,
        start_new_session=True,
    )
    try:
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield address
        process.stdin.close()  # it ends its nodes, and then itself
        process.wait(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _main(num_nodes: int, devices: int, resource: str) -> None:
    from ray.cluster_utils import Cluster

    settings = {"num_cpus": 2 * devices + 2, "object_store_memory": 128 << 20}
    if resource != "CPU":
        settings["resources"] = {resource: devices}
    cluster = Cluster(initialize_head=True, head_node_args=settings)
    for _ in range(num_nodes - 1):
        cluster.add_node(**settings)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
