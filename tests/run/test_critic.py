"""The critic in a step of the loop, with stand-ins for the engines: what is asked of it, in which order, and what its log tells."""

import math

import numpy as np
import pytest

from tandem.checkpoint.checkpoints import write
from tandem.config.checks import check
from tandem.config.load import load
from tandem.errors import UserError
from tandem.progress import unseen
from tandem.run import critic, loop, passes
from tests.run.fake_run import FakeRun

PPO = ["algorithm.advantage=gae", "fidelity.max_logprob_abs_diff_mean=0", "algorithm.whiten=false", "algorithm.lam=1"]
NO_KL = "algorithm.kl.coef=0"


class WithCritic(FakeRun):
    """Its values are half of the token's place: 0, 0.5, 1, ..."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        trainers, self.seen = self.trainers, []

        def values(sequences):
            trainers.calls.append("values")
            assert all(s.experts is None for s in sequences)
            return [np.arange(len(s.response_ids), dtype=np.float32) / 2 for s in sequences]

        def update_critic(sequences, *, lr):
            trainers.calls.append("critic")
            self.seen.append(([dict(s.fields) for s in sequences], lr))
            return {"loss/value": 0.5, "value/clip_share": 0.0, "critic/grad_norm": 2.0, "critic/update_ok": 1.0}

        trainers.values, trainers.update_critic = values, update_critic


def test_values_come_before_the_update_and_the_critic_learns_the_lambda_returns(tmp_path):
    run = WithCritic(tmp_path, [[[1.0, 0.0]]], *PPO, NO_KL)
    metrics = loop.one_step(run, 1)
    assert [call for call in run.trainers.calls if call != "sleep"] == ["rollout", "old", "values", "critic", "update"]
    [(fields, lr)] = run.seen
    assert fields[0]["value_targets"].tolist() == [1.0, 1.0, 1.0] and fields[1]["value_targets"].tolist() == [0.0, 0.0, 0.0]
    assert fields[0]["old_values"].tolist() == [0.0, 0.5, 1.0] and fields[0]["weights"] == pytest.approx(1 / 6)
    assert lr == run.config.critic.optimizer.lr == metrics["critic/lr"]
    [(trained, _)] = run.trainers.updates
    assert trained[0].fields["advantages"].tolist() == [1.0, 0.5, 0.0], "what was earned less the value of each token's state"
    targets, values = [1.0] * 3 + [0.0] * 3, [0.0, 0.5, 1.0] * 2
    errors = np.array(targets) - values
    assert metrics["value/explained_variance"] == pytest.approx(1 - errors.var() / np.var(targets))
    assert metrics["loss/value"] == 0.5 and metrics["critic/grad_norm"] == 2.0 and metrics["critic/num_skipped"] == 0


def test_the_policy_waits_while_the_critic_warms_up_and_its_log_probs_are_still_compared(tmp_path):
    settings = [*PPO, "critic.warmup_steps=1", "algorithm.kl.coef=0.1", "fidelity.max_kl_ref_at_start=1", "algorithm.old_logprobs=rollout"]
    run = WithCritic(tmp_path, [[[1.0, 0.0]]] * 2, *settings)
    first = loop.one_step(run, 1)
    assert "update" not in run.trainers.calls and "critic" in run.trainers.calls and "old" in run.trainers.calls
    assert first["lr"] == 0.0 and first["kl/coef"] == 0.1 == run.algorithm_state.kl_coef
    assert first["fidelity/logprob_abs_diff_mean"] == pytest.approx(0.125)
    run.trainers.calls.clear()
    assert loop.one_step(run, 2)["lr"] > 0 and "update" in run.trainers.calls
    assert any("critic learns beside the policy" in line for line in passes.notes(run.config))


def test_each_token_pays_for_its_own_drift_where_a_critic_gives_it_an_advantage(tmp_path):
    kl = ["algorithm.kl.where=reward", "algorithm.kl.coef=0.5", "algorithm.kl.kind=k1", "fidelity.max_kl_ref_at_start=1"]
    run = WithCritic(tmp_path, [[[1.0, 0.0]]], *PPO, *kl)
    loop.one_step(run, 1)
    [(fields, _)] = run.seen
    price = 0.5 * 0.375  # log p(trainer) - log p(reference) = -1.125 + 1.5
    assert fields[0]["value_targets"] == pytest.approx([1 - 3 * price, 1 - 2 * price, 1 - price])


def test_equal_targets_leave_nothing_to_explain(tmp_path):
    run = WithCritic(tmp_path, [[[1.0, 1.0]]], *PPO, NO_KL)
    assert math.isnan(loop.one_step(run, 1)["value/explained_variance"])


def test_mini_batches_and_passes_of_the_critic_are_the_policys(tmp_path):
    run = WithCritic(tmp_path, [[[1.0, 0.0], [0.0, 1.0]]], *PPO, NO_KL, "batch.mini_batch_size=1", "batch.num_epochs=2")
    loop.one_step(run, 1)
    assert [len(fields) for fields, _ in run.seen] == [2] * 4 and run.trainers.calls.count("update") == 4


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["algorithm.advantage=gae", "algorithm.loss=gspo"], "an advantage of its own"),
        (["algorithm.advantage=ppo", "critic.warmup_steps=100"], "never be updated"),
        (["critic.optimizer.betas=[1,0.9]"], "critic.optimizer.betas"),
        (["algorithm.advantage=gae", "algorithm.dynamic_sampling=2"], "compared within their group"),
    ],
)
def test_settings_under_which_a_critic_would_be_of_no_use_are_refused(overrides, told):
    with pytest.raises(UserError) as caught:
        check(load("demo", overrides, env={}))
    assert told in str(caught.value) + caught.value.why + caught.value.what
    check(load("demo", ["algorithm.advantage=gae"], env={}))


def test_a_checkpoint_has_a_folder_of_the_critics_and_one_without_is_refused_by_name(tmp_path):
    run = WithCritic(tmp_path, [[[1.0, 0.0]]], *PPO, NO_KL)

    def save(folder, critic=False):
        (folder / "a.distcp").write_text("critic" if critic else "policy")
        from tandem.sync.digest import file_digest

        return lambda progress: {"a.distcp": file_digest(folder / "a.distcp")}

    run.trainers.begin_save = save
    final = write(tmp_path / "checkpoints" / "step_000001", None, lambda folder: run._begin_save_of_trainers(folder)(unseen))
    assert (final / "critic" / "a.distcp").read_text() == "critic" and (final / "trainers" / "a.distcp").read_text() == "policy"
    from tandem.config.checkpointfolder import Checkpoint, read_manifest

    checkpoint = Checkpoint(final, read_manifest(final), {})
    assert list(checkpoint.shards("critic")) == list(checkpoint.shards("trainers")) == ["a.distcp"]
    with pytest.raises(UserError, match="has no critic"):
        Checkpoint(final, {"trainers/a.distcp": "0"}, {}).shards("critic")
    assert critic.policy_learns(run.config, 1)


def test_policy_and_critic_take_turns_on_the_device():
    """What one does begins with the other's way out; with `trainer.offload` both would not fit."""
    from tandem.actors.train_rank import TrainRank

    calls: list[str] = []

    class Model:
        def __init__(self, name: str):
            self.name = name

        def critic(self):
            return Model("critic")

        def __getattr__(self, method: str):
            return lambda *args, **kwargs: calls.append(f"{self.name}.{method}" + (" all" if kwargs.get("parameters") else ""))

    rank = object.__new__(TrainRank)
    rank.engine = Model("policy")
    rank.start_critic(1e-3, 0.0)
    rank.values([])
    rank.update_critic([], 1e-3)
    rank.offload(False)
    around = ["policy.offload all", "critic.{}", "critic.offload all"]
    expected = [step.format(method) for method in ("start_optimizer", "scores", "update") for step in around]
    assert calls == [*expected, "policy.offload", "critic.offload all"]
