"""Samples come in the order of their prompts, whichever engine is done first and in whatever order it hands them out."""

import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest

from tandem.actors import generator_group
from tandem.actors.generator_group import EngineFailure, GeneratorGroup
from tandem.rollout.types import SamplingParams

PROMPTS = [SimpleNamespace(row=SimpleNamespace(id=f"row{index % 4}")) for index in range(6)]


@dataclass(frozen=True)
class Engine:
    index: int


class Puppet:
    """A share of a rollout that hands out one prompt a look, in a given order; every other look it has none."""

    orders: ClassVar[dict[int, list[int]]] = {}
    fails_after: ClassVar[dict[int, int]] = {}  # looks of an engine until it fails, once

    def __init__(self, replica, requests):
        self.replica, self.indices, self.requests = replica, list(requests), requests
        self.left = [index for index in self.orders[replica.index] if index in requests]
        self.is_done, self.looks = False, 0

    def news(self, timeout_s: float):
        self.looks += 1
        if self.fails_after.get(self.replica.index) == self.looks:
            self.fails_after.pop(self.replica.index)
            raise EngineFailure("the rollout", "its process died", "", lost=True)
        if self.looks % 2:
            return []
        index = self.left.pop(0)
        self.is_done = not self.left
        return [(index, [f"{self.requests[index].prompt.row.id} by seed {self.requests[index].sampling.seed}"])]


@pytest.fixture
def generate(monkeypatch):
    def generate(orders: dict[int, list[int]], fails_after: dict[int, int] | None = None):
        monkeypatch.setattr(Puppet, "orders", orders)
        monkeypatch.setattr(Puppet, "fails_after", dict(fails_after or {}))
        group = GeneratorGroup.__new__(GeneratorGroup)
        trainer = SimpleNamespace(deterministic=True)
        group.config, group.health_timeout_s = SimpleNamespace(trainer=trainer), 1.0
        group.replicas, group.progress, group._renew = [Engine(0), Engine(1)], lambda *_: None, lambda *_: None
        return group.generate(PROMPTS, SamplingParams(seed=7))

    monkeypatch.setattr(generator_group, "Watched", Puppet)
    monkeypatch.setattr(generator_group, "wait_for_news", lambda running: None)
    return generate


def test_any_order_of_completion_gives_the_same_samples(generate):
    expected = [[f"row{index % 4} by seed {7 + (index // 4 << 32)}"] for index in range(6)]
    for first, second in itertools.product(itertools.permutations([0, 2, 4]), itertools.permutations([1, 3, 5])):
        assert generate({0: [*first], 1: [*second]}) == expected


def test_so_does_an_engine_that_was_started_anew_in_the_middle(generate):
    expected = generate({0: [0, 2, 4], 1: [1, 3, 5]})
    for looks in range(1, 6):
        assert generate({0: [4, 0, 2], 1: [5, 3, 1]}, {1: looks}) == expected
