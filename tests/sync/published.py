"""A trainer of one layout publishes to a generator of another, which is compared with one loaded from the export of the same step."""

import os
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

from tandem.config.schema import ParallelConfig, RolloutConfig
from tandem.engine.fork_ranks import fork_ranks
from tandem.rollout.types import SamplingParams, requests_of
from tandem.sync.shared_memory import cleanup
from tests.rollout.remote import RemoteEngine

LAYOUT = {"tp": 2, "pp": 2, "ep": 2}


def count_differing_samples(model: Path, sequences: list, folder: Path, *, num_ranks: int, gen_tps: list[int], bucket_bytes: int) -> dict:
    """Train and publish with `num_ranks` in LAYOUT, then generate with each GEN_TP.

    Returns:
        {gen_tp: (samples, those whose tokens or log-probs are not bit for bit those of a fresh load, those unlike the start model's)}
    """
    prefix, exported, found = f"tandem-published-{os.getpid()}", folder / "export", {}
    call = {"model_path": str(model), "sequences": sequences, "prefix": prefix, "bucket_bytes": bucket_bytes, "target": str(exported)}
    try:
        shares = fork_ranks("tests.sync.publish_ranks:train_publish_and_export", ParallelConfig(**LAYOUT), num_ranks, **call)
        buckets = [bucket for bucket in chain(*zip_longest(*shares)) if bucket]  # from all ranks in turn, as they come in a run
        names = [entry.name for bucket in buckets for entry in bucket.entries if entry.is_last]
        requests = requests_of([s.prompt for s in sequences], SamplingParams(num_samples=2, max_tokens=16, seed=3))
        for gen_tp in gen_tps:
            start, fresh = _engine(model, gen_tp), _engine(exported, gen_tp)
            before, right = start.generate(requests, 0), fresh.generate(requests, 0)
            fresh.close()
            start.begin_update(1)
            for bucket in buckets:
                start.load_bucket(bucket)
            start.finish_update(1, names)
            ours = start.generate(requests, 1)
            start.close()
            found[gen_tp] = (2 * len(requests), _num_differing(ours, right), _num_differing(ours, before))
    finally:
        cleanup(prefix)
    return found


def _engine(model: Path, gen_tp: int) -> RemoteEngine:
    rollout = RolloutConfig(tp=gen_tp, max_num_seqs=32, cache_bytes=32 << 20, enforce_eager=True)
    return RemoteEngine(rollout, model_path=str(model), dtype="float32", max_model_len=256, seed=0, banned_token_ids=[], stop_token_ids=[1])


def _num_differing(ours: list, theirs: list) -> int:
    pairs = [(a, b) for x, y in zip(ours, theirs) for a, b in zip(x, y)]
    return sum(not (np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.logprobs, b.logprobs)) for a, b in pairs)
