"""Training again on what a run recorded does what the run did; what is not recorded is refused."""

import numpy as np
import pytest

from tandem.errors import UserError
from tandem.run.loop import one_step
from tandem.run.replay import Replay
from tests.run.fake_run import FakeRun

NO_LIMITS = ("fidelity.max_logprob_abs_diff_mean=0", "fidelity.max_kl_ref_at_start=0")  # the fake trainers differ by a constant
UNLIKE = ("time/", "tokens_per_s", "version", "staleness")  # the fake run stays at version 0
REWARDS = [[[1.0, 0.0, 0.5], [0.0, 0.25, 0.0]], [[0.0, 0.0, 1.0], [1.0, 1.0, 0.5]]]


class Loader:
    """Only counts."""

    position = 0

    def next(self):
        self.position += 2
        return 0, []

    def state_dict(self):
        return {"position": self.position}


class Prompts:
    def __init__(self, prompts):
        self.prompts, self.rows = prompts, [prompt.row for prompt in prompts]

    def __getitem__(self, number):
        return self.prompts[number]


@pytest.fixture
def recorded(tmp_path):
    run = FakeRun(tmp_path / "recorded", REWARDS, *NO_LIMITS, lengths=[3, 5, 4])
    metrics = [one_step(run, step) for step in (1, 2)]
    return run, metrics


def replaying(tmp_path, *overrides: str, known: int = 4) -> FakeRun:
    run = FakeRun(tmp_path / "again", REWARDS, f"record.replay={tmp_path / 'recorded'}", "trainer.total_steps=2", *NO_LIMITS, *overrides)
    run.loader = Loader()
    run.train_prompts = Prompts([run.prompt() for _ in range(known)])
    del run.generators
    run.replay()
    run.next_batch = lambda step: FakeRun.__mro__[1].next_batch(run, step)
    run.publish = lambda version: FakeRun.__mro__[1].publish(run, version)
    return run


def test_the_trainers_get_the_same_sequences_and_the_metrics_are_the_same(tmp_path, recorded) -> None:
    first, metrics = recorded
    again = replaying(tmp_path)
    for step in (1, 2):
        now = one_step(again, step)
        assert {k: v for k, v in now.items() if not k.startswith(UNLIKE)} == {
            k: v for k, v in metrics[step - 1].items() if not k.startswith(UNLIKE)
        }
        assert now["version"] == step
    for (before, kl), (after, kl_again) in zip(first.trainers.updates, again.trainers.updates):
        assert kl == kl_again
        for a, b in zip(before, after, strict=True):
            assert a.prompt.row.id == b.prompt.row.id
            assert np.array_equal(a.response_ids, b.response_ids)
            assert a.fields.keys() == b.fields.keys()
            assert all(np.array_equal(a.fields[name], b.fields[name]) for name in a.fields)
    assert "sleep" not in again.trainers.calls


def test_another_reward_of_the_same_rollouts_is_graded_anew(tmp_path, recorded) -> None:
    _, metrics = recorded
    assert one_step(replaying(tmp_path, "reward.format_weight=0.5"), 1)["reward/mean"] != metrics[0]["reward/mean"]


def test_samples_of_one_model_may_be_any_number_of_versions_behind(tmp_path, recorded) -> None:
    again = replaying(tmp_path)
    one_step(again, 1)
    again.version = 2  # the recorded are of version 0
    assert one_step(again, 2)["staleness/mean"] == 2


def test_steps_that_were_not_recorded_are_told_before_anything_is_trained(tmp_path, recorded) -> None:
    with pytest.raises(UserError, match=r"trainer\.total_steps=2"):
        replaying(tmp_path, "trainer.total_steps=3")
    (tmp_path / "recorded" / "rollouts" / "step_000001.parquet").unlink()
    with pytest.raises(UserError, match="no rollouts of step 1"):
        replaying(tmp_path)


def test_a_row_that_is_not_among_the_prompts_is_named(tmp_path, recorded) -> None:
    with pytest.raises(UserError, match="rows:2"):
        one_step(replaying(tmp_path, known=1), 1)


@pytest.mark.parametrize("override", ["algorithm.advantage=remax", "rollout.router_replay=true"])
def test_what_needs_more_than_is_recorded_is_refused(tmp_path, recorded, override) -> None:
    with pytest.raises(UserError, match="not recorded"):
        replaying(tmp_path, override)


def test_dynamic_sampling_draws_no_step_that_follows(tmp_path, recorded) -> None:
    again = replaying(tmp_path, "algorithm.dynamic_sampling=2")
    assert again.config.algorithm.dynamic_sampling == 0
    assert isinstance(again.rollouts, Replay)
