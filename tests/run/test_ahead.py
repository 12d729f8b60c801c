"""One step off policy, with generators on devices of their own: the next batch is made while one trains, by weights one step old."""

import threading
import time
from types import SimpleNamespace

import pytest

from tandem.config.load import load
from tandem.data.loader import Loader
from tandem.errors import RunError
from tandem.rollout.types import SamplingParams
from tandem.run.ahead import Rollouts, check_versions

SAMPLING = SamplingParams()


class Generators:
    """Stands for the engines: remembers what it was asked for, and takes its time."""

    def __init__(self):
        self.asked, self.go = [], threading.Event()

    def generate(self, prompts, sampling):
        self.asked.append(list(prompts))
        assert self.go.wait(10)
        if prompts == ["broken"]:
            raise RunError("engines failed", "", "")
        return [[SimpleNamespace(version=0)] for _ in prompts]


def rollouts(ahead: int, prompts=("a", "b", "c", "d")) -> Rollouts:
    return Rollouts(Loader(len(prompts), 1, shuffle=False), list(prompts), Generators(), ahead=ahead)


def test_the_next_batch_is_begun_when_one_is_taken_and_is_not_counted_as_trained():
    ours = rollouts(ahead=1)
    ours.generators.go.set()
    batch = ours.take(SAMPLING, SAMPLING)
    assert batch.prompts == ["a"] and batch.loader_state["position"] == 1, "what a checkpoint goes on from"
    ours.settle()
    assert ours.generators.asked == [["a"], ["b"]]
    assert ours.take(SAMPLING, None).prompts == ["b"]
    ours.settle()
    assert ours.generators.asked == [["a"], ["b"]], "the last batch has none after it"


def test_without_ahead_nothing_is_generated_before_it_is_asked_for():
    ours = rollouts(ahead=0)
    ours.generators.go.set()
    ours.take(SAMPLING, SAMPLING)
    ours.settle()
    assert ours.generators.asked == [["a"]]


def test_a_publication_waits_for_the_batch_that_is_being_generated():
    ours = rollouts(ahead=1)
    ours.generators.go.set()
    ours.take(SAMPLING, SAMPLING)
    ours.settle()
    ours.generators.go.clear()
    ours.take(SAMPLING, SAMPLING)
    waiting = threading.Thread(target=ours.settle, daemon=True)
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive()
    ours.generators.go.set()
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_failure_ahead_is_raised_by_the_step_that_needs_the_batch():
    ours = rollouts(1, ("a", "broken", "c"))
    ours.generators.go.set()
    ours.take(SAMPLING, SAMPLING)
    ours.settle()
    with pytest.raises(RunError, match="engines failed"):
        ours.take(SAMPLING, None)


@pytest.mark.parametrize(("versions", "max_staleness", "mean"), [([3, 3], 0, 0.0), ([2, 3], 1, 0.5), ([2, 2], 1, 1.0)])
def test_the_mean_staleness_of_a_batch(versions, max_staleness, mean):
    batch = SimpleNamespace(completions=[[SimpleNamespace(version=version)] for version in versions])
    assert check_versions(batch, 3, max_staleness) == mean


@pytest.mark.parametrize(("versions", "max_staleness"), [([2], 0), ([1], 1), ([4], 1)], ids=["stale", "too stale", "from the future"])
def test_samples_of_a_version_that_is_not_allowed_stop_the_run(versions, max_staleness):
    batch = SimpleNamespace(completions=[[SimpleNamespace(version=version) for version in versions]])
    with pytest.raises(RunError, match="versions behind"):
        check_versions(batch, 3, max_staleness)


def test_a_split_run_trains_on_samples_one_step_old_and_every_publication_is_proven(tmp_path):
    import ray

    from tandem.actors import cluster
    from tandem.devices import cpu
    from tandem.run import assemble, loop
    from tandem.run.tracker import Tracker

    settings = ["trainer.devices_per_node=1", "rollout.placement=split", "rollout.replicas=1", "rollout.max_staleness=1"]
    settings += ["data.train_batch_size=8", "rollout.n=4", "trainer.total_steps=3", "trainer.val_before_train=false", "data.val_max_rows=4"]
    settings += [
        "optimizer.lr=1e-2",
        "algorithm.entropy_coef=1.0",
        "algorithm.correction.kind=truncated",
        "warm_start.max_steps=0",
        f"run_dir={tmp_path}",
    ]
    config = load("demo", settings).model_copy(update={"device": "cpu"})
    cluster.start(config, cpu)
    track = Tracker(tmp_path)
    run = assemble.assemble(config, cpu, "train", tmp_path, track)
    try:
        loop.train(run)
    finally:
        run.close()
        ray.shutdown()
    steps = [row for row in track.rows if "staleness/mean" in row]
    assert [row["staleness/mean"] for row in steps] == [0.0, 1.0, 1.0]
    assert [row["version"] for row in steps] == [1, 2, 3]
    assert all(row["publish/canary_abs_diff"] <= 1e-3 for row in steps)
    assert steps[0]["fidelity/logprob_abs_diff_mean"] <= 1e-3 and steps[0]["correction/effective_share"] >= 0.999
    assert 0 < steps[1]["correction/effective_share"] < 1
