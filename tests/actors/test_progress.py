"""How far a long call of a training rank is: told seldom enough to cost nothing, and always to its end."""

from types import SimpleNamespace

import pytest

from tandem.actors.progress import PushedProgress
from tandem.run.tracker import Tracker
from tandem.track.events import PhaseAdvanced


def listener() -> tuple[list[tuple[int, int]], SimpleNamespace]:
    told: list[tuple[int, int]] = []
    return told, SimpleNamespace(advanced=SimpleNamespace(remote=lambda done, total: told.append((done, total))))


def test_a_thousand_quick_steps_are_two_messages_and_the_end_is_one_of_them():
    told, controller = listener()
    progress = PushedProgress(controller, every_s=60)
    for done in range(1, 1001):
        progress(done, 1000)
    assert told == [(1, 1000), (1000, 1000)]


def test_without_a_controller_nobody_is_told():
    PushedProgress(None)(1, 2)


@pytest.fixture
def track(tmp_path) -> Tracker:
    return Tracker(tmp_path)


def advanced(track: Tracker) -> list[tuple[str, int, int]]:
    return [(e.name, e.done, e.total) for e in track.take(0.0) if isinstance(e, PhaseAdvanced)]


def test_a_phase_of_several_calls_does_not_start_over_with_each(track):
    with track.phase("update"):
        for part in range(3):
            track.part(part, 3)
            track.advanced_within(1, 2)
            track.advanced_within(2, 2)
    with track.phase("publish"):  # parts end with their phase
        track.advanced_within(5, 10)
    assert advanced(track) == [("update", done, 6) for done in range(1, 7)] + [("publish", 5, 10)]


def test_progress_that_comes_after_its_phase_is_dropped(track):
    with track.phase("update"):
        pass
    track.advanced_within(2, 2)
    assert advanced(track) == []


def test_a_warm_start_and_a_publication_do_not_jump_to_their_end_when_a_rank_scores_something_meanwhile(track):
    with track.phase("warm start", 400) as progress:
        progress(10, 400)
        track.advanced_within(1, 1)  # the held-out rows
    with track.phase("publish"):
        track.advanced(50, 89)
        track.advanced_within(1, 1)  # the canary
    assert advanced(track) == [("warm start", 10, 400), ("publish", 50, 89)]
