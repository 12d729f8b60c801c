"""The 122B recipe's placement on four Ray nodes of 16 NPU resources each, all on this machine: who sits where. No weights, no NPU.

    python benchmarks/placement.py [--json FILE]

68 processes start: 2.5 minutes on two cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.actors.nodes import cluster_of

NODES, DEVICES = 4, 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with cluster_of(NODES, DEVICES, "NPU") as address, tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        command = ["cluster", "check", "qwen3_5_122b_a10b", "device=npu", f"cluster.address={address}", "--timeout", "900", "--json"]
        done = subprocess.run([sys.executable, "-m", "tandem", *command], capture_output=True, text=True, cwd=folder)
        seconds = time.monotonic() - began
    if done.returncode:
        sys.stderr.write(done.stderr)
        return 1
    places = {place["seat"]: place for place in json.loads(done.stdout)["places"]}
    nodes = [places[f"rank {rank}"]["node"] for rank in range(NODES * DEVICES)]
    figures = {
        "seconds": round(seconds),
        "seats": len(places),
        "ranks_fill_node_after_node": [len(set(nodes[n * DEVICES : (n + 1) * DEVICES])) for n in range(NODES)] == [1] * NODES,
        "nodes": len(set(nodes)),
        "every_device_once": sorted((place["node"], int(id)) for seat, place in places.items() if "rank" in seat for id in place["devices"])
        == sorted((node, device) for node in set(nodes) for device in range(DEVICES)),
        "generators_on_their_ranks_node": all(places[f"generator {n}"]["node"] == nodes[n * DEVICES] for n in range(NODES)),
    }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(figures.values()) and figures["nodes"] == NODES else 1


if __name__ == "__main__":
    sys.exit(main())
