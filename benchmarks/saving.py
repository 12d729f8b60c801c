"""Checkpoints: how long does the loop stand still for one, written beside it and waited for, and how many bytes does it have?

    python benchmarks/saving.py [--json FILE] [--check] [--quick] [--repeats N] [--dtype bfloat16|float32]

Two training ranks on CPU (data parallel, Ray actors as in a run) train and save in turn: one save that the loop waits for, one that is
written while it goes on. Seconds are medians; the loop stands still from asking for a save until it may go on. Steps are timed alone and
while files are being written: on this machine's cores, ranks and writers share the time. Bytes of state are those of the weights once and
of master weights and moments over all ranks; where both are the same memory (fp32) they count once.

`--check` exits 1 when a save beside the loop does not stop it for less time, or when more than 1.02 bytes are written for one of state.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from tandem.config.load import load

MAX_BYTES = 1.02


def bytes_of_state(rank) -> tuple[int, int]:
    """On a training rank: of its weights, and of what its optimizer has beside them."""
    from tandem.engine import offload

    def storages(tensors) -> dict[int, int]:
        return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors if tensor.numel()}

    engine = rank.engine
    weights = {parameter for chunk in engine.chunks for parameter in chunk.parameters()}
    held = storages(offload.parameter_tensors(engine.wrapped))
    beside = [tensor for tensor in offload.optimizer_tensors(engine.optimizer) if tensor.untyped_storage().data_ptr() not in held]
    return sum(weight.nbytes for weight in weights), sum(tensor.nbytes for tensor in beside)


def seconds_of(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(run, step, repeats: int) -> dict[str, list[float]]:
    """Saves in turn. `step`: one optimizer step."""
    took: dict[str, list[float]] = {name: [] for name in ("sync", "async", "written_after", "step", "step_beside")}
    number = 0
    for _ in range(repeats):
        took["step"] += [seconds_of(step) for _ in range(2)]
        number += 1
        took["sync"].append(seconds_of(lambda number=number: run.save(number, wait=True)))
        step()
        number += 1
        began = time.perf_counter()
        took["async"].append(seconds_of(lambda number=number: run.save(number)))
        while not run.saving.is_settled:
            took["step_beside"].append(seconds_of(step))
            run.settle_save(wait=False)
        took["written_after"].append(time.perf_counter() - began)
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit 1 when something is not as it should be")
    parser.add_argument("--quick", action="store_true", help="a small model, in which files have more beside their bytes of state")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    arguments = parser.parse_args()

    import ray

    from tandem.actors import cluster
    from tandem.devices import cpu
    from tandem.run import assemble
    from tandem.run.tracker import Tracker
    from tests.engine.test_packed import weighted
    from tests.examples import make_sequences, write_tiny_model

    with tempfile.TemporaryDirectory(prefix="tandem-saving-") as folder:
        model = write_tiny_model(Path(folder) / "model", "test" if arguments.quick else "100M")
        run_dir = Path(folder) / "run"
        run_dir.mkdir()
        settings = ["trainer.devices_per_node=2", f"model.path={model}", f"model.dtype={arguments.dtype}", "trainer.keep_last=1"]
        settings += ["data.train_batch_size=8", f"run_dir={run_dir}", "trainer.total_steps=1000"]
        config = load("demo", settings).model_copy(update={"device": "cpu"})
        cluster.start(config, cpu)
        run = assemble.assemble(config, cpu, "sft", run_dir, Tracker(run_dir))
        run.rollouts = SimpleNamespace(pending=None, close=lambda: None)
        try:
            run.trainers.start_optimizer(1e-3, 0.0)
            sequences = weighted(make_sequences(model))
            step = lambda: run.trainers.update(sequences, lr=1e-4, supervised=True)  # noqa: E731
            step()
            held = ray.get([rank.__ray_call__.remote(bytes_of_state) for rank in run.trainers.ranks])
            took = measure(run, step, arguments.repeats)
            [saved] = [path for path in (run_dir / "checkpoints").iterdir() if path.is_dir()]
            num_written = sum(path.stat().st_size for path in saved.rglob("*") if path.is_file())
        finally:
            run.close()
            ray.shutdown()
            shutil.rmtree(run_dir, ignore_errors=True)
    num_state = held[0][0] + sum(beside for _, beside in held)
    median = {name: statistics.median(seconds) for name, seconds in took.items() if seconds}
    result = {
        "dtype": arguments.dtype,
        "repeats": arguments.repeats,
        "stands_still_sync_s": median["sync"],
        "stands_still_async_s": median["async"],
        "async_over_sync": median["async"] / median["sync"],
        "complete_after_s": median["written_after"],
        "step_s": median["step"],
        "step_beside_writing_s": median.get("step_beside"),
        "bytes_written": num_written,
        "bytes_of_state": num_state,
        "bytes_written_over_state": num_written / num_state,
        "seconds": took,
    }
    table = Table("what", "value")
    for name, value in result.items():
        if name != "seconds":
            table.add_row(name, f"{value:.3g}" if isinstance(value, float) else str(value))
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    good = result["async_over_sync"] < 1 and result["bytes_written_over_state"] <= MAX_BYTES
    return int(arguments.check and not good)


if __name__ == "__main__":
    sys.exit(main())
