"""The packed gated delta rule against transformers' PyTorch one, which runs the same sequences as a padded batch.

    python benchmarks/gated_delta.py [--json FILE] [--check] [--quick] [--heads H]

Speed: medians of interleaved repeats on one thread, in CPU seconds of the process, which the load of the machine changes least.
Memory: each case in a forked process of its own, the growth of its resident peak (ru_maxrss) over that with the inputs made.
Lengths are like Geometry3K's with images: 300 to 1200 tokens, most of them short. Rows that are not `packed` run one sequence.
`--quick` leaves out the 32768 tokens, which take minutes: transformers' backward pass is quadratic in the chunks of a sequence.
`--check` exits 1 when a bound below is missed.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import torch
import transformers
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import Tensor
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import torch_chunk_gated_delta_rule

from tandem.qwen3_5.gated_delta import chunk_layout, gated_delta_rule

HEAD_DIM = 128  # keys and values, as in every Qwen3.5
NUM_TOKENS = (512, 4096, 32768)
MAX_REPEATS, ENOUGH_SECONDS = 9, 20.0  # whichever comes first ends the repeats of a case
MIN_SPEEDUP, MIN_SPEEDUP_PACKED_4096 = 1.0, 2.0
MAX_PEAK_RATIO = 1.0
NUM_DRAWS = 4  # of the lengths at 4096 tokens: the fuller the padded batch, the less packing gains


def geometry_lengths(num_tokens: int, draw: int = 0) -> list[int]:
    """The first sequences drawn that fit into `num_tokens`; what no sequence fits into is filled with a piece of one."""
    generator, lengths, left = torch.Generator().manual_seed(draw), [], num_tokens
    while left:
        tail = float(torch.empty(1).log_normal_(mean=5.0, std=1.0, generator=generator))
        length = min(int(300 + tail), 1200)
        if length <= left or left < 300:
            lengths.append(min(length, left))
            left -= lengths[-1]
    return lengths


def packed_inputs(lengths: list[int], num_heads: int) -> list[Tensor]:
    """q, k, v [T, H, 128], g and beta [T, H], fp32."""
    generator, num_tokens = torch.Generator().manual_seed(1), sum(lengths)
    q, k, v = (torch.randn(num_tokens, num_heads, HEAD_DIM, generator=generator) for _ in range(3))
    g, beta = (torch.rand(num_tokens, num_heads, generator=generator) for _ in range(2))
    return [q, k, v, -g, beta]


def make_call(which: str, lengths: list[int], num_heads: int, backward: bool) -> Callable[[], None]:
    """One call of one implementation, with its inputs made: packed, or padded to the longest sequence."""
    inputs = packed_inputs(lengths, num_heads)
    if which == "tandem":
        layout = chunk_layout(torch.tensor([0, *lengths]).cumsum(0), num_heads * 2 * HEAD_DIM)
        rule = lambda *inputs: gated_delta_rule(*inputs, layout)[0]  # noqa: E731
    else:
        inputs = [torch.nn.utils.rnn.pad_sequence(x.split(lengths), batch_first=True) for x in inputs]
        rule = lambda *inputs: torch_chunk_gated_delta_rule(*inputs, use_qk_l2norm_in_kernel=True)[0]  # noqa: E731
    if not backward:
        return torch.no_grad()(lambda: rule(*inputs))
    inputs = [x.requires_grad_() for x in inputs]
    d_o = torch.ones_like(inputs[2])
    return lambda: torch.autograd.grad(rule(*inputs), inputs, d_o)


def peak_of_call(*case) -> int:
    """Bytes. Run in a process of its own."""
    make_call(*case[:1], [64], *case[2:])()  # what the first call of all allocates and keeps
    call = make_call(*case)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def seconds_of_call(call: Callable[[], None]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(lengths: list[int], num_heads: int, backward: bool) -> dict:
    sides = ("transformers", "tandem")
    peaks = {}
    for side in sides:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            peaks[side] = pool.apply(peak_of_call, (side, lengths, num_heads, backward))
    return {
        "num_tokens": sum(lengths),
        "direction": "fwd_bwd" if backward else "fwd",
        "packed": len(lengths) > 1,
        "num_sequences": len(lengths),
        "num_padded_tokens": len(lengths) * max(lengths),
        "peak_bytes": peaks["tandem"],
        "peak_bytes_transformers": peaks["transformers"],
        "lengths": lengths,
    }


def time_case(row: dict, num_heads: int) -> None:
    """Adds seconds and speed-up to a row of `measure`."""
    lengths, backward = row.pop("lengths"), row["direction"] == "fwd_bwd"
    calls = {side: make_call(side, lengths, num_heads, backward) for side in ("transformers", "tandem")}
    seconds: dict[str, list[float]] = {side: [] for side in calls}
    while len(seconds["tandem"]) < MAX_REPEATS and sum(map(sum, seconds.values())) < ENOUGH_SECONDS:
        for side, call in calls.items():
            seconds[side].append(seconds_of_call(call))
    ours, theirs = (statistics.median(seconds[side]) for side in ("tandem", "transformers"))
    row |= {"seconds": ours, "seconds_transformers": theirs, "repeats": len(seconds["tandem"]), "speedup_over_transformers": theirs / ours}


def misses(row: dict) -> list[str]:
    """The bounds that a row does not keep."""
    min_speedup = MIN_SPEEDUP_PACKED_4096 if row["packed"] and row["num_tokens"] == 4096 else MIN_SPEEDUP
    found = []
    if row["speedup_over_transformers"] < min_speedup:
        found.append(f"speed-up under {min_speedup:g}")
    if row["peak_bytes"] > MAX_PEAK_RATIO * row["peak_bytes_transformers"]:
        found.append("peak above transformers'")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is missed")
    parser.add_argument("--quick", action="store_true", help="leave the 32768 tokens out")
    parser.add_argument("--heads", type=int, default=4, help="value heads of one rank; key heads as many")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()  # it warns at every call that it has no kernel
    sizes = [n for n in NUM_TOKENS if n <= 4096 or not arguments.quick]
    cases = [geometry_lengths(n) for n in sizes] + [geometry_lengths(4096, draw) for draw in range(1, NUM_DRAWS)] + [[n] for n in sizes]
    # all memory before any timing: a forked process would reuse what the timed calls have freed
    rows = [measure(lengths, arguments.heads, backward) for lengths in cases for backward in (False, True)]
    columns = ("tokens", "sequences", "padded to", "passes", "seconds", "transformers", "speed-up", "peak MB", "transformers", "missed")
    table = Table(*columns)
    with Live(table, console=Console()):
        for row in rows:
            time_case(row, arguments.heads)
            table.add_row(
                str(row["num_tokens"]),
                str(row["num_sequences"]),
                str(row["num_padded_tokens"]),
                row["direction"],
                f"{row['seconds']:.3f}",
                f"{row['seconds_transformers']:.3f}",
                f"{row['speedup_over_transformers']:.2f}",
                f"{row['peak_bytes'] / 1e6:.0f}",
                f"{row['peak_bytes_transformers'] / 1e6:.0f}",
                ", ".join(misses(row)),
            )
    machine = {"processor": processor_name(), "cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}
    if arguments.json:
        result = {"machine": machine, "num_threads": 1, "num_heads": arguments.heads, "head_dim": HEAD_DIM, "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=1))
    return 1 if arguments.check and any(misses(row) for row in rows) else 0


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
