"""Engines that die, hang, answer nonsense or lose a tensor, under a real run: no prompt is lost, no wrong sample is used, nothing hangs."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
import ray

from tandem.actors import generator_group
from tandem.actors.generator_group import GeneratorsFailed
from tandem.config.load import load
from tandem.errors import RunError
from tandem.rollout.types import SamplingParams
from tandem.run import publish

HEALTH_S = 15.0
OVERRIDES = [
    "data.train_batch_size=8",
    "rollout.n=4",
    f"rollout.health_timeout_s={HEALTH_S}",
    "rollout.max_failures=2",
    "trainer.devices_per_node=1",
    "data.val_max_rows=4",
    "sync.verify_share=1",  # of a share only the canary would tell, if the damage is large enough
]
SAMPLING = SamplingParams(num_samples=4, max_tokens=24, seed=5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from tandem.actors import cluster
    from tandem.devices import cpu
    from tandem.run import assemble
    from tandem.run.tracker import Tracker

    run_dir = tmp_path_factory.mktemp("run")
    config = load("demo", [*OVERRIDES, f"run_dir={run_dir}"]).model_copy(update={"device": "cpu"})
    cluster.start(config, cpu)
    run = assemble.assemble(config, cpu, "train", run_dir, Tracker(run_dir))
    run.trainers.start_optimizer(1e-3, 0.0)
    run.publish(0)
    yield run
    run.close()
    ray.shutdown()


@pytest.fixture
def expected(run):
    """What the engines give when nothing happens to them; the same for any engine, since every sample has its own seed."""
    return generated(run)


def generated(run) -> list[list[tuple]]:
    prompts = run.train_prompts[:8]
    completions = run.generators.generate(prompts, SAMPLING)
    assert all(len(samples) == 4 and {s.version for s in samples} == {run.version} for samples in completions)
    return [[tuple(s.token_ids.tolist()) for s in samples] for samples in completions]


def same_share(ours: list[list[tuple]], theirs: list[list[tuple]]) -> float:
    """Near ties may turn with the batch that a sample is decoded in."""
    pairs = [(a, b) for x, y in zip(ours, theirs) for a, b in zip(x, y)]
    return float(np.mean([a == b for a, b in pairs]))


def pid(replica) -> int:
    return replica.family[0][0]


def ends_at_step(number: signal.Signals, steps: int):
    """For an engine's process: it sends itself a signal in the middle of its next rollout."""

    def prepare(self) -> None:
        vllm, left = self.engine._engine, [steps]
        step = vllm.step

        def step_or_end():
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), number)
            return step()

        vllm.step = step_or_end

    return prepare


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_an_engine_that_ends_while_it_decodes_is_replaced_and_its_prompts_are_generated(run, expected, number):
    victim = run.generators.replicas[1]
    old = pid(victim)
    ray.get(victim.actor.__ray_call__.remote(ends_at_step(number, 8)))
    ours = generated(run)
    assert same_share(ours, expected) >= 0.95
    assert pid(victim) != old and victim.version == run.version
    with pytest.raises(ProcessLookupError):
        os.kill(old, 0)


@pytest.mark.parametrize(("number", "at_bucket"), [(signal.SIGSTOP, 0), (signal.SIGKILL, 1)], ids=["stopped before", "killed during"])
def test_an_engine_that_ends_in_a_publication_holds_the_new_weights_after_it(run, monkeypatch, number, at_bucket):
    victim, seen, load_bucket = run.generators.replicas[0], [0], publish.Audience.load
    old = pid(victim)

    def load(self, bucket, rank, node):
        seen[0] += 1
        if seen[0] == at_bucket:
            os.kill(old, number)
        return load_bucket(self, bucket, rank, node)

    monkeypatch.setattr(publish.Audience, "load", load)
    if at_bucket == 0:
        os.kill(old, number)
    began = time.monotonic()
    assert run.publish(run.version + 1)["publish/canary_abs_diff"] <= 1e-3
    assert run.generators._num_failures == 1, "one failure counts once"
    assert pid(victim) != old and {replica.version for replica in run.generators.replicas} == {run.version}
    assert time.monotonic() - began < 300, "bounded, however slow the machine"
    generated(run)


def test_a_publication_that_comes_while_engines_generate_waits_and_no_sample_is_of_two_versions(run, expected, monkeypatch):
    version, has_begun, wait_for_news = run.version, Event(), generator_group.wait_for_news

    def told(running):
        has_begun.set()
        wait_for_news(running)

    monkeypatch.setattr(generator_group, "wait_for_news", told)
    with ThreadPoolExecutor(1) as thread:
        rollout = thread.submit(run.generators.generate, run.train_prompts[:8], SAMPLING)
        assert has_begun.wait(60)
        assert run.publish(version + 1)["publish/canary_abs_diff"] <= 1e-3
        completions = rollout.result(timeout=60)
    assert {sample.version for samples in completions for sample in samples} == {version}
    assert same_share([[tuple(s.token_ids.tolist()) for s in samples] for samples in completions], expected) >= 0.95
    assert {replica.version for replica in run.generators.replicas} == {version + 1}
    assert run.generators._num_failures == 0


def damaged(run, monkeypatch, change, times: int):
    """The next `times` buckets of weights are changed on their way."""
    left, load_bucket = [times], publish.Audience.load

    def load(self, bucket, rank, node):
        if left[0] > 0:
            left[0] -= 1
            change(bucket)
        if left[0] == 0 and change is drop:
            left[0] = -1
            return None
        return load_bucket(self, bucket, rank, node)

    monkeypatch.setattr(publish.Audience, "load", load)


def corrupt(bucket) -> None:
    with open(bucket.path, "r+b") as file:
        file.seek(bucket.entries[0].offset + 3)
        file.write(b"\xff\x00\xff")


def drop(bucket) -> None:
    """Not handed over at all."""


@pytest.mark.parametrize("change", [corrupt, drop])
def test_a_bucket_that_is_damaged_or_lost_once_is_published_again(run, monkeypatch, change):
    damaged(run, monkeypatch, change, 1)
    before = [pid(replica) for replica in run.generators.replicas]
    assert run.publish(run.version + 1)["publish/canary_abs_diff"] <= 1e-3
    assert [pid(replica) for replica in run.generators.replicas] == before, "the engines were not at fault"
    generated(run)


def test_buckets_that_are_always_damaged_stop_the_run_with_the_tensor_s_name(run, monkeypatch):
    with monkeypatch.context() as patch:
        damaged(run, patch, corrupt, 1000)
        with pytest.raises(GeneratorsFailed, match="failed during a publication") as caught:
            run.publish(run.version + 1)
        assert "arrived damaged: tensor" in str(caught.value.what) and "rollout.max_failures = 2" in str(caught.value.why)
    run.publish(run.version + 1)
    generated(run)


def test_generators_that_always_fail_stop_the_run_and_the_trainers_are_saved(run, monkeypatch):
    from tandem.run.loop import saved_if_generators_fail

    def kill_again(replica):
        renew(replica)
        os.kill(pid(replica), signal.SIGKILL)
        time.sleep(0.5)

    renew = run.generators.renew
    with monkeypatch.context() as patch:
        patch.setattr(run.generators, "renew", kill_again)
        os.kill(pid(run.generators.replicas[0]), signal.SIGKILL)
        with pytest.raises(GeneratorsFailed), saved_if_generators_fail(run):
            generated(run)
    assert (run.run_dir / "checkpoints" / f"step_{run.trained_version:06d}" / "state.json").is_file()
    for replica in run.generators.replicas:
        run.generators.renew(replica)
    run.generators._num_failures = 0
    run.publish(run.version + 1)
    generated(run)


def test_weights_that_the_engine_does_not_use_are_caught_by_the_canary(run, monkeypatch):
    """Both sides say that version n was published; one engine still decodes with other numbers."""
    replica = run.generators.replicas[1]

    def spoil(self):
        self.engine._llm.collective_rpc(scale_norm)

    check = run._check_canary
    monkeypatch.setattr(run, "_check_canary", lambda *args: (ray.get(replica.actor.__ray_call__.remote(spoil)), check(*args))[1])
    with pytest.raises(RunError, match="generator 1 does not generate with the weights that were published"):
        run.publish(run.version + 1)
    monkeypatch.undo()
    run.publish(run.version + 1)
    generated(run)


def scale_norm(worker) -> None:
    worker.model_runner.model.language_model.model.norm.weight.data.add_(0.5)
