"""Training tokens a second, packed against padded: the same micro-batches of the same sequences, on one process and one thread.

    python benchmarks/packing.py [--json FILE] [--check] [--quick]

Lengths are like Geometry3K's with images, those of `gated_delta.py`; a micro-batch holds eight sequences in the order drawn. `fill` is the
share of real tokens in the padded batches. Updates alternate between the two forms; figures are medians of CPU seconds. `--check` exits 1
when packing gains less than 0.9 / fill.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.gated_delta import geometry_lengths
from tandem.config.schema import ParallelConfig
from tandem.data.types import Sequence
from tandem.engine.fork_ranks import fork_ranks
from tests.engine.test_packed import text_sequence, weighted
from tests.examples import write_tiny_model

SEQUENCES_A_MICRO_BATCH = 8
MIN_SHARE_OF_IDEAL = 0.9


def time_updates(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each update, packed and padded in turn. Run on a forked rank."""
    from tests.engine.ranks import make_engine

    engine = make_engine(model_path, parallel, batch={"micro_batch_size": SEQUENCES_A_MICRO_BATCH})
    engine.start_optimizer(lr=1e-4, weight_decay=0.0)
    config, seconds = engine.config, {"packed": [], "padded": []}
    for repeat in range(repeats + 1):
        for form, times in seconds.items():
            batch = config.batch.model_copy(update={"packing": form == "packed"})
            engine.config = config.model_copy(update={"batch": batch})
            start = time.process_time()
            engine.update(sequences, supervised=True, lr=1e-4)
            if repeat:  # the first allocates
                times.append(time.process_time() - start)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help=f"exit 1 when packing gains less than {MIN_SHARE_OF_IDEAL} / fill")
    parser.add_argument("--quick", action="store_true", help="16 sequences instead of 64, 3 repeats instead of 7")
    arguments = parser.parse_args()
    lengths = geometry_lengths(60_000)[: 16 if arguments.quick else 64]
    groups = [lengths[at : at + SEQUENCES_A_MICRO_BATCH] for at in range(0, len(lengths), SEQUENCES_A_MICRO_BATCH)]
    fill = sum(lengths) / sum(len(group) * max(group) for group in groups)
    sequences = weighted([text_sequence(length, seed) for seed, length in enumerate(lengths)])
    with tempfile.TemporaryDirectory(prefix="tandem-packing-") as folder:
        model = write_tiny_model(Path(folder) / "model", "test")
        call = {"model_path": str(model), "sequences": sequences, "repeats": 3 if arguments.quick else 7}
        [seconds] = fork_ranks("benchmarks.packing:time_updates", ParallelConfig(), 1, timeout_s=3000, **call)
    tokens_per_s = {form: sum(lengths) / statistics.median(times) for form, times in seconds.items()}
    gain = tokens_per_s["packed"] / tokens_per_s["padded"]
    table = Table("sequences", "tokens", "fill", "packed tokens/s", "padded tokens/s", "packed / padded", "of 1 / fill")
    figures = (*(f"{tokens_per_s[form]:.0f}" for form in seconds), f"{gain:.2f}", f"{gain * fill:.2f}")
    table.add_row(str(len(lengths)), str(int(np.sum(lengths))), f"{fill:.2f}", *figures)
    Console().print(table)
    if arguments.json:
        result = {"packed_over_padded": gain, "fill": fill} | {f"tokens_per_s_{form}": rate for form, rate in tokens_per_s.items()}
        arguments.json.write_text(json.dumps(result | {"num_sequences": len(lengths), "num_threads": 1}, indent=1))
    return int(arguments.check and gain < MIN_SHARE_OF_IDEAL / fill)


if __name__ == "__main__":
    sys.exit(main())
