"""Which engines are started anew in a publication, how often, and that none is left with other weights."""

import threading
from types import SimpleNamespace

import pytest
from ray.exceptions import RayTaskError

from tandem.actors import generator_group
from tandem.actors.generator_group import EngineFailure, GeneratorGroup, Replica, failure_of
from tandem.config.load import load
from tandem.errors import RunError
from tandem.run import run as module
from tandem.run.publish import Publication
from tandem.run.run import Run

DEAD = EngineFailure("a publication", "its process died", "", lost=True)
REFUSED = EngineFailure("a publication", "arrived damaged", "", lost=False)


class Faults:
    """A run of two colocated engines. What fails in each publication, and in each waking of caches, by the engine's number."""

    def __init__(self, tmp_path, monkeypatch, publications: list[dict], wakes: list[dict], max_failures: int = 1):
        settings = [f"rollout.max_failures={max_failures}", "rollout.replicas=2", "sync.canary_tokens=0"]
        self.renewed, self.published, self.woken = [], [], []
        self.publications, self.wakes = publications, wakes
        self.run = run = Run(load("demo", settings, env={}), tmp_path, SimpleNamespace(note=lambda text: None))
        run._check_names = lambda names: None
        run.trainers = SimpleNamespace(lock=threading.RLock(), offload=lambda parameters: None)
        run.generators = group = GeneratorGroup.__new__(GeneratorGroup)
        group.config, group.health_timeout_s, group._num_failures, group.note = run.config, 1.0, 0, lambda text: None
        wake = SimpleNamespace(wake=SimpleNamespace(remote=lambda part: part))
        group.replicas = [Replica(index, lambda: wake, lambda actor: None) for index in range(2)]
        group.renew = lambda replica: self.renewed.append(replica.index)
        monkeypatch.setattr(module, "publish", self.publish)
        monkeypatch.setattr(generator_group, "answers", self.wake)

    def publish(self, trainers, replicas, version, prefix, **_) -> Publication:
        failing = self.publications.pop(0) if self.publications else {}
        self.published.append([replica.index for replica in replicas])
        return Publication(version, failed={replica: failing[replica.index] for replica in replicas if replica.index in failing})

    def wake(self, calls, timeout_s, during, failed) -> dict:
        failing = self.wakes.pop(0) if self.wakes else {}
        self.woken.append([replica.index for replica in calls])
        failed |= {replica: failing[replica.index] for replica in calls if replica.index in failing}
        return {replica: None for replica in calls if replica not in failed}


def test_an_engine_that_dies_in_a_publication_is_counted_and_started_once(tmp_path, monkeypatch):
    """It was asked to wake its caches too: that counted and started it a second time."""
    faults = Faults(tmp_path, monkeypatch, [{0: DEAD}], [], max_failures=1)
    faults.run.catch_up(faults.run.generators.replicas)
    assert faults.renewed == [0] and faults.run.generators._num_failures == 1
    assert faults.published == [[0, 1], [0]] and faults.woken == [[1], [0]]


def test_an_engine_that_dies_when_its_caches_wake_gets_the_new_weights_too(tmp_path, monkeypatch):
    """A new one was put in its place after the publication: with the start model's weights, and nobody published to it."""
    faults = Faults(tmp_path, monkeypatch, [], [{1: DEAD}])
    faults.run.catch_up(faults.run.generators.replicas)
    assert faults.renewed == [1] and faults.published == [[0, 1], [1]]


def test_an_engine_that_refuses_twice_in_a_row_is_started_anew_and_not_asked_until_the_run_stops(tmp_path, monkeypatch):
    faults = Faults(tmp_path, monkeypatch, [{0: REFUSED}, {0: REFUSED}], [], max_failures=2)
    group = faults.run.generators
    faults.run.catch_up(group.replicas)
    assert faults.renewed == [0] and faults.published == [[0, 1], [0], [0]]
    for replica in group.replicas:
        replica.has_refused, group._num_failures = False, 0
    faults.publications += [{1: REFUSED}, {}, {1: REFUSED}]
    faults.run.catch_up(group.replicas)
    faults.run.catch_up(group.replicas)
    assert faults.renewed == [0], "a publication that it took lies between"


@pytest.mark.parametrize(("cause", "lost"), [(RunError("arrived damaged", "", ""), False), (RuntimeError("Executor failed."), True)])
def test_an_engine_whose_worker_or_device_is_gone_answers_with_an_error_that_is_not_ours_and_is_lost(cause, lost):
    """vLLM's executor answers `Executor failed.` for ever once one of its workers was killed."""
    failure = failure_of(RayTaskError("load_bucket", "trace\nthe last line", cause), "a publication")
    assert failure.lost is lost and failure.what == ("arrived damaged" if not lost else "the last line")
