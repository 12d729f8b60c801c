"""Peak memory of log-probs and entropies at the real vocabulary: it grows with the chunk, not with the tokens.

    python benchmarks/logprob_memory.py [--json FILE] [--check] [--quick]

Each case runs forward and backward in a forked process of its own: the growth of its resident peak (ru_maxrss) over that with the inputs.
`bound_bytes`: two fp32 tensors of [chunk, vocabulary], the gradients of weight and hidden states, and 32 MB for all else.
`--check` exits 1 when a peak is above its bound.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import resource
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import torch
from rich.console import Console
from rich.table import Table

from tandem.qwen3_5.scores import chunk_size, token_scores

VOCAB_SIZE, HIDDEN_SIZE = 248_320, 32  # few channels: what is measured are the logits
CHUNKS = (16, 64, 0)  # 0: the default
NUM_TOKENS = (512, 2048)
REST_BYTES = 32 << 20
M_MMAP_THRESHOLD = -3  # glibc's malloc.h


def peak_of_case(num_tokens: int, chunk: int) -> int:
    """Bytes. Run in a process of its own."""
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # else what glibc keeps of freed tensors, tens of MB, differs from run to run
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        hidden = torch.randn(num_tokens, HIDDEN_SIZE, requires_grad=True)
        weight = torch.randn(VOCAB_SIZE, HIDDEN_SIZE, requires_grad=True)
        target = torch.arange(num_tokens)
        settings = {"tp_group": torch.distributed.group.WORLD, "entropy_grad": True}
        token_scores(hidden[:1], weight[:64], target[:1], **settings).sum().backward()  # what the first call allocates and keeps
        hidden.grad = weight.grad = None
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        token_scores(hidden, weight, target, chunk=chunk, **settings).sum().backward()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        torch.distributed.destroy_process_group()
    return (after - before) * 1024


def measure(num_tokens: int, chunk: int) -> dict:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        peak = pool.apply(peak_of_case, (num_tokens, chunk))
    tokens = chunk or chunk_size(VOCAB_SIZE)
    bound = 4 * (2 * tokens * VOCAB_SIZE + (VOCAB_SIZE + num_tokens) * HIDDEN_SIZE) + REST_BYTES
    return {"vocab_size": VOCAB_SIZE, "num_tokens": num_tokens, "chunk": tokens, "peak_bytes": peak, "bound_bytes": bound}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit 1 when a peak is above its bound")
    parser.add_argument("--quick", action="store_true", help="512 tokens only")
    arguments = parser.parse_args()
    rows = [measure(num_tokens, chunk) for num_tokens in NUM_TOKENS[: 1 if arguments.quick else None] for chunk in CHUNKS]
    table = Table("tokens", "chunk", "peak MB", "bound MB", "one fp32 [tokens, vocabulary] MB")
    for row in rows:
        whole = 4 * row["num_tokens"] * VOCAB_SIZE
        table.add_row(
            str(row["num_tokens"]), str(row["chunk"]), *(f"{x / 1e6:.0f}" for x in (row["peak_bytes"], row["bound_bytes"], whole))
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1))
    return int(arguments.check and any(row["peak_bytes"] > row["bound_bytes"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
