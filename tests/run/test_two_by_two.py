"""Two generators of two workers each beside a trainer of two ranks, all real processes of one run."""

import numpy as np
import ray

from tandem.config.load import load
from tandem.rollout.types import SamplingParams, requests_of
from tests.engine.test_packed import text_sequence, weighted


def decode(replica, requests) -> list[np.ndarray]:
    return [completion.logprobs for completion in ray.get(replica.actor.decode.remote(requests, replica.version), timeout=300)]


def test_both_generators_give_the_numbers_of_a_fresh_load_of_the_same_step(tmp_path):
    from tandem.actors import cluster
    from tandem.devices import cpu
    from tandem.run import assemble
    from tandem.run.tracker import Tracker

    settings = [
        "trainer.devices_per_node=2",
        "parallel.tp=2",
        "parallel.ep=2",
        "rollout.tp=2",
        "rollout.replicas=2",
        "warm_start.max_steps=0",
        "rollout.router_replay=true",
        "sync.transport=collective",
    ]
    settings += ["data.train_batch_size=4", "rollout.n=2", "sync.bucket_bytes=1048576", "rollout.max_num_seqs=16", f"run_dir={tmp_path}"]
    config = load("demo", settings).model_copy(update={"device": "cpu"})
    cluster.start(config, cpu)
    run = assemble.assemble(config, cpu, "train", tmp_path, Tracker(tmp_path))
    try:
        run.publish(0)
        requests = requests_of(run.train_prompts[:4], SamplingParams(temperature=0.0, max_tokens=12))
        first, second = run.generators.replicas
        before = decode(first, requests)
        run.trainers.start_optimizer(1e-2, 0.0)
        run.trainers.update(weighted([text_sequence(40, seed=seed) for seed in range(4)]), lr=1e-2, supervised=True)
        assert run.publish(1)["publish/canary_abs_diff"] <= 1e-3
        ours, theirs = decode(first, requests), decode(second, requests)
        run.export()
        run.generators._start_arguments = (str(tmp_path / "export"), *run.generators._start_arguments[1:])
        run.generators.renew(second)
        assert second.version == 0 and first.version == 1
        for old, a, b, fresh in zip(before, ours, theirs, decode(second, requests)):
            np.testing.assert_array_equal(a, fresh)
            np.testing.assert_array_equal(b, fresh)
            assert not np.array_equal(old, fresh)
    finally:
        run.close()
        ray.shutdown()
