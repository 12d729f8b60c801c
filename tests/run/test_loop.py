"""The loop with every real part: Ray actors, Megatron-Core ranks, vLLM. One cluster and one run for the whole file."""

import contextlib
import ipaddress

import numpy as np
import psutil
import pytest

from tandem.config.load import load
from tandem.errors import RunError

OVERRIDES = [
    "data.train_batch_size=8",
    "rollout.n=4",
    "optimizer.lr=2e-3",  # too much to learn with: what is stale must be plain to see
    "algorithm.kl.coef=0.01",
    "warm_start.max_steps=60",  # some samples earn a reward, so that there is something to update by
    "warm_start.batch_size=64",
    "trainer.total_steps=10",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    import ray

    from tandem.actors import cluster
    from tandem.devices import cpu
    from tandem.run import assemble, sft
    from tandem.run.tracker import Tracker

    run_dir = tmp_path_factory.mktemp("run")
    config = load("demo", [*OVERRIDES, f"run_dir={run_dir}"]).model_copy(update={"device": "cpu"})
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_ADDRESS", "127.0.0.1:9")  # of some other cluster: a run without cluster.address starts its own
        cluster.start(config, cpu)
    run = assemble.assemble(config, cpu, "train", run_dir, Tracker(run_dir))
    sft.warm_start(run)
    run.trainers.keep_reference()
    run.trainers.start_optimizer(config.optimizer.lr, 0.0)
    yield run
    run.close()
    ray.shutdown()


def test_all_that_listens_does_so_on_loopback(run):
    """Ray's services, its workers, the ranks' rendezvous and collectives, vLLM's workers: whoever reaches them can run code."""
    me, heard = psutil.Process(), dict[str, list[str]]()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections():
                if connection.status == psutil.CONN_LISTEN:
                    heard.setdefault(connection.laddr.ip.removeprefix("::ffff:"), []).append(process.name())
    assert {"gcs_server", "raylet"} < set(heard["127.0.0.1"]) and any("TrainRank" in name for name in heard["127.0.0.1"])
    assert all(ipaddress.ip_address(address).is_loopback for address in heard), heard


@pytest.fixture
def fresh(run):
    """The run right after a publication, its loader at the start: every test sees the same prompts again."""
    run.publish(run.version + 1)
    run.loader.position = 0
    return run


def test_trainer_and_generator_agree_at_every_step_right_after_publication(fresh):
    from tandem.run.loop import one_step

    for _ in range(2):
        metrics = one_step(fresh, step=fresh.version + 2)  # not the first step: the reference is no longer the policy
        assert metrics["fidelity/logprob_abs_diff_mean"] <= 1e-4
        assert metrics["grad_norm"] > 0
        assert metrics["ratio/abs_diff_mean"] == 0.0  # one mini-batch a step: the policy that is updated made the samples


def test_a_publication_that_was_skipped_is_caught(fresh, monkeypatch):
    from tandem.run.loop import one_step

    with monkeypatch.context() as skipped:
        skipped.setattr(fresh, "publish", lambda version: {})
        one_step(fresh, step=5)  # updates the trainer only
    with pytest.raises(RunError, match="trainer and generator disagree"):
        one_step(fresh, step=6)


def test_caches_that_a_publication_leaves_are_not_read(fresh):
    """Each generation drops them too, so that samples do not depend on what was generated before."""
    import ray

    from tandem.run.loop import one_step

    def finish_without_reset(engine, version, names):
        report = engine._call("finish_update", version, list(names))
        engine._version = version
        return report

    def break_it(self):
        self.engine.finish_update = lambda version, names: finish_without_reset(self.engine, version, names)

    one_step(fresh, step=5)  # fills the caches, then updates
    for replica in fresh.generators.replicas:
        ray.get(replica.actor.__ray_call__.remote(break_it))
    try:
        for step in (6, 7):
            fresh.loader.position = 0  # the same prompts and images
            metrics = one_step(fresh, step)
            assert metrics["publish/canary_abs_diff"] <= 1e-4
            assert metrics["fidelity/logprob_abs_diff_mean"] <= 1e-4
    finally:
        for replica in fresh.generators.replicas:
            ray.get(replica.actor.__ray_call__.remote(lambda self: delattr(self.engine, "finish_update")))


def test_a_generator_that_lags_refuses_to_generate(fresh):
    import ray

    from tandem.rollout.types import SamplingParams, requests_of

    with pytest.raises(RunError, match="holds version"):
        ray.get(fresh.generators.replicas[0].actor.decode.remote(requests_of(fresh.train_prompts[:2], SamplingParams()), fresh.version + 1))


def test_traces_are_written_of_the_chosen_step_and_rank_and_of_no_other(fresh, monkeypatch):
    from tandem.run.loop import one_step
    from tandem.run.profile import profiled
    from tandem.track import profiles

    profile = fresh.config.trainer.profile.model_copy(update={"steps": [6], "ranks": [1], "timeline": True})
    trainer = fresh.config.trainer.model_copy(update={"profile": profile})
    monkeypatch.setattr(fresh, "config", fresh.config.model_copy(update={"trainer": trainer}))
    for step in (5, 6):
        with profiled(fresh, step):
            metrics = one_step(fresh, step)
    trace, timeline = profiles.traces_of(fresh.run_dir)
    assert (trace.step, trace.what, timeline.step, timeline.what) == (6, "rank_1", 6, "timeline")
    assert set(trace.path.parent.iterdir()) == {trace.path, timeline.path}, "nothing half-written stays"
    events = profiles.read_events(timeline.path)
    named = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert named.keys() == {"controller", "rank_1", "generator_0", "generator_1"}
    assert {event["pid"] for event in events if event["ph"] == "X"} == set(named.values()), "calls of every process"
    seconds = profiles.self_seconds(profiles.read_events(trace.path))
    assert seconds["aten::mm"] + seconds["aten::addmm"] > 0
    assert sum(seconds.values()) < 4 * metrics["time/step_s"]  # two threads, forward and backward, and a margin


def test_the_export_scores_as_the_trainer_did(fresh):
    import torch
    from transformers import AutoModelForImageTextToText

    from tandem.data.types import Sequence

    prompts = fresh.train_prompts[:6]
    sequences = [Sequence(p, fresh.builder.encode_response(p.row.extra_info["response"])) for p in prompts]
    scored = fresh.trainers.scores(sequences, temperature=1.0, masked=False)
    model = AutoModelForImageTextToText.from_pretrained(fresh.export(), dtype=torch.float32)
    for sequence, (logprobs, _) in zip(sequences, scored):
        ids, prompt = torch.from_numpy(sequence.token_ids)[None], sequence.prompt
        with torch.no_grad():
            logits = model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=torch.from_numpy(prompt.pixel_values),
                image_grid_thw=torch.from_numpy(prompt.image_grid_thw),
                mm_token_type_ids=(ids == model.config.image_token_id).long(),
            ).logits
        expected = logits[0, len(prompt.token_ids) - 1 : -1].log_softmax(-1).gather(1, torch.from_numpy(sequence.response_ids)[:, None])
        assert np.abs(logprobs - expected[:, 0].numpy()).max() <= 1e-4
