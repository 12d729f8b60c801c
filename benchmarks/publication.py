"""Publication of weights: are the generator's numbers those of a fresh load, how fast is it beside a copy, how much memory does it take?

    python benchmarks/publication.py [--json FILE] [--check] [--quick] [--transport shared_memory|device|collective] [--layouts]

A trainer in one layout (TP2 PP2 EP2, four ranks) publishes to a generator in another (GEN_TP 2), real ones on CPU. After a step of training
the generator's log-probs are compared, bit for bit, with those of an engine that was freshly loaded from the export of the same step.
Seconds are medians over several publications. The copy beside them is of the same bytes, one thread, between two arrays whose pages are
there, in turn with the publications.

`transport_over_copy` is what the road itself gives: tensors of the same bytes in all from one process through the two halves of a bucket in
shared memory, a tenth of them with checksums on both sides, to another process that copies them out; beside it the same tensors copied one
by one within a process. (One block of all bytes is copied half as fast again, past the processor's caches: `transport_over_memcpy`.)
`bandwidth_over_memcpy` is a whole publication: the trainers gather what tensor parallelism cut (about a seventh of the bytes here), the
engine's two workers each take their part, caches are reset, and vLLM packs every matrix for its CPU kernels; the work of seven processes on
two cores. `wait_seconds` is without a bucket from any trainer, `load_seconds` in the engine's first worker, of these `pack_seconds` in
vLLM's own packing, without which it cannot generate and which alone takes several times as long as the copy:
`bandwidth_without_packing_over_memcpy` leaves them out.

Memory is what all processes hold for themselves plus shared memory, at its highest during a publication, over what it was before without
the ranks' bucket files plus one bucket. `--check` exits 1 when log-probs differ, when a whole publication is below 0.5
of a copy of one block (which it is: vLLM's packing alone takes longer than that), or the memory above 1.1.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table

from tandem.config.load import load

MIN_BANDWIDTH, MAX_MEMORY = 0.5, 1.1
VERIFY_SHARE = 0.1


class PeakMemory:
    """Samples the anonymous memory of processes and the shared memory of the machine, in bytes, on a thread."""

    def __init__(self, pids: list[int]):
        self.pids, self.peak, self._stop = pids, 0, threading.Event()

    def now(self) -> int:
        anonymous = 0
        for pid in self.pids:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    anonymous += int(line.split()[1]) << 10
        disk = os.statvfs("/dev/shm")
        return anonymous + (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def __enter__(self) -> "PeakMemory":
        self.before = self.peak = self.now()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.peak = max(self.peak, self.now())

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()


def copy_seconds(num_bytes: int) -> float:
    source, target = np.ones(num_bytes, np.uint8), np.full(num_bytes, 2, np.uint8)  # pages of both are there: a copy and nothing else
    began = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began


def send(tensors: dict, bucket_bytes: int, prefix: str, channel) -> None:
    """The training rank's side of `transport_seconds`, in a process of its own: a bucket whenever one is asked for."""
    from tandem.sync.buckets import BucketWriter
    from tandem.sync.memory import shared_files
    from tandem.sync.shared_memory import SHARED_MEMORY

    torch.set_num_threads(1)
    writer = BucketWriter(shared_files(SHARED_MEMORY, prefix), bucket_bytes)
    while (version := channel.recv()) is not None:
        for bucket in writer.write(tensors.items(), version, VERIFY_SHARE):
            channel.send(bucket)
            channel.recv()
        channel.send(None)
    writer.close()


def transport_seconds(num_bytes: int, bucket_bytes: int, num_turns: int) -> tuple[list[float], list[float], list[float]]:
    """Of each turn, for tensors of `num_bytes` in all: from the first request to the last tensor copied out; of copying each tensor; of one
    block."""
    from tandem.sync.buckets import BucketReader

    size = 4 << 20
    tensors = {f"tensor{i}": torch.full((size // 4,), float(i)) for i in range(max(1, num_bytes // size))}
    targets = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    processes = multiprocessing.get_context("fork")
    here, there = processes.Pipe()
    other = processes.Process(target=send, args=(tensors, bucket_bytes, f"tandem-transport-{os.getpid()}", there))
    other.start()
    reader, seconds, copies, blocks = BucketReader(), [], [], []
    for version in range(num_turns + 1):
        reader.restart()
        began = time.perf_counter()
        here.send(version)
        while (bucket := here.recv()) is not None:
            here.send("next")  # is filled while this one is read
            for name, tensor in reader.read(bucket):
                targets[name].copy_(tensor)
        seconds.append(time.perf_counter() - began)
        assert all(torch.equal(tensors[name], target) for name, target in targets.items())
        for target in targets.values():
            target.zero_()
        began = time.perf_counter()
        for name, tensor in tensors.items():
            targets[name].copy_(tensor)
        copies.append(time.perf_counter() - began)
        blocks.append(copy_seconds(len(tensors) * size))
    here.send(None)
    other.join()
    return seconds[1:], copies[1:], blocks[1:]  # the first turn makes the file's pages


def publish_next(run):
    from tandem.run.publish import publish

    version = run.generators.replicas[0].version + 1
    return publish(run.trainers, run.generators.replicas, version, run.shared_memory_prefix, verify_share=VERIFY_SHARE, timeout_s=300)


def decode(replica, requests) -> list[np.ndarray]:
    import ray

    return [completion.logprobs for completion in ray.get(replica.actor.decode.remote(requests, replica.version), timeout=600)]


def layouts(json_file: Path | None) -> int:
    """Samples after a publication whose log-probs are not bit for bit those of an engine loaded from the export: none may be."""
    from tests.engine.test_packed import weighted
    from tests.examples import make_sequences, write_tiny_model
    from tests.sync.published import count_differing_samples

    with tempfile.TemporaryDirectory(prefix="tandem-layouts-") as folder:
        model = write_tiny_model(Path(folder) / "model", "test")
        sequences = weighted(make_sequences(model))
        found = count_differing_samples(model, sequences, Path(folder), num_ranks=8, gen_tps=[2, 1], bucket_bytes=1 << 17)
    table, rows = Table("GEN_TP", "samples", "differing", "unlike the start model's"), []
    for gen_tp, (num_samples, num_differing, num_unlike_start) in found.items():
        table.add_row(*map(str, (gen_tp, num_samples, num_differing, num_unlike_start)))
        rows.append({"gen_tp": gen_tp, "num_samples": num_samples, "num_differing": num_differing, "num_unlike_start": num_unlike_start})
    Console().print(table)
    if json_file:
        json_file.write_text(json.dumps({"rows": rows}, indent=1))
    return int(any(row["num_differing"] for row in rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit 1 when something is not as it should be")
    parser.add_argument("--quick", action="store_true", help="the demo's model instead of one of 100 MB, 3 publications instead of 7")
    parser.add_argument("--transport", choices=["shared_memory", "device", "collective"], default="shared_memory", help="sync.transport")
    parser.add_argument("--layouts", action="store_true", help="only: 8 ranks, TP2 PP2 EP2, to GEN_TP 2 and 1, against fresh loads")
    arguments = parser.parse_args()
    if arguments.layouts:
        return layouts(arguments.json)

    import ray

    from tandem.actors import cluster
    from tandem.devices import cpu
    from tandem.rollout.types import SamplingParams, requests_of
    from tandem.run import assemble
    from tandem.run.tracker import Tracker
    from tandem.sync.shared_memory import SHARED_MEMORY
    from tests.engine.test_packed import weighted
    from tests.examples import make_sequences, write_tiny_model

    with tempfile.TemporaryDirectory(prefix="tandem-publication-") as folder:
        model = write_tiny_model(Path(folder) / "model", "test" if arguments.quick else "100M")
        run_dir = Path(folder) / "run"
        settings = ["trainer.devices_per_node=4", "parallel.tp=2", "parallel.pp=2", "parallel.ep=2", "rollout.tp=2", f"model.path={model}"]
        settings += ["data.train_batch_size=8", "rollout.n=4", "warm_start.max_steps=0", f"run_dir={run_dir}", "rollout.replicas=1"]
        settings += ["parallel.sp=true", "rollout.health_timeout_s=300", "rollout.cache_bytes=67108864", "rollout.max_num_seqs=16"]
        settings += [f"sync.bucket_bytes={64 << 20}", f"sync.transport={arguments.transport}"]
        config = load("demo", settings).model_copy(update={"device": "cpu"})
        cluster.start(config, cpu)
        run = assemble.assemble(config, cpu, "train", run_dir, Tracker(run_dir))
        try:
            run.publish(0)
            run.trainers.start_optimizer(1e-3, 0.0)
            run.trainers.update(weighted(make_sequences(model)), lr=1e-3, supervised=True)
            run.publish(1)
            replica = run.generators.replicas[0]
            requests = requests_of(run.train_prompts[:8], SamplingParams(temperature=0.0, max_tokens=16))
            published = decode(replica, requests)
            pids = ray.get([rank.__ray_call__.remote(lambda self: os.getpid()) for rank in run.trainers.ranks])
            pids += [pid for pid, _ in replica.family if psutil.pid_exists(pid)]
            seconds, copies, peaks, parts = [], [], [], []
            for _ in range(3 if arguments.quick else 7):
                done = publish_next(run)
                seconds.append(done.seconds)
                copies.append(copy_seconds(done.num_bytes))
                parts.append((done.wait_seconds, done.load_seconds, done.pack_seconds))
                with PeakMemory(pids) as memory:  # apart: looking takes time
                    publish_next(run)
                files = sum(os.stat(path).st_blocks * 512 for path in SHARED_MEMORY.glob(f"{run.shared_memory_prefix}-*"))
                peaks.append(memory.peak / (memory.before - files + min(config.sync.bucket_bytes, done.num_bytes)))
            run.export()
            run.generators._start_arguments = (str(run_dir / "export"), *run.generators._start_arguments[1:])
            run.generators.renew(replica)
            fresh = decode(replica, requests)
        finally:
            run.close()
            ray.shutdown()
    road = transport_seconds(done.num_bytes, config.sync.bucket_bytes, len(seconds))
    road_s, copy_s, block_s = map(statistics.median, road)
    equal = all(np.array_equal(a, b) for a, b in zip(published, fresh))
    wait, load_, pack = (statistics.median(some) for some in zip(*parts))
    took, copy = statistics.median(seconds), statistics.median(copies)
    result = {
        "logprobs_equal_fresh_load": equal,
        "transport_over_copy": copy_s / road_s,
        "transport_over_memcpy": block_s / road_s,
        "bandwidth_over_memcpy": copy / took,
        "bandwidth_without_packing_over_memcpy": copy / (took - pack),
        "peak_over_model_plus_bucket": max(peaks),
        "bytes": done.num_bytes,
        "seconds": took,
        "memcpy_seconds": copy,
        "wait_seconds": wait,
        "load_seconds": load_,
        "pack_seconds": pack,
    }
    table = Table("what", "value")
    for name, value in result.items():
        table.add_row(name, f"{value:.3g}" if isinstance(value, float) else str(value))
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    good = equal and result["bandwidth_over_memcpy"] >= MIN_BANDWIDTH and result["peak_over_model_plus_bucket"] <= MAX_MEMORY
    return int(arguments.check and not good)


if __name__ == "__main__":
    sys.exit(main())
