"""One step of the loop with stand-ins for the engines: what is drawn, what is computed, what is left out, and what each token weighs."""

import math

import numpy as np
import pytest

from tandem.errors import RunError
from tandem.run import loop, passes
from tandem.run.collect import collect
from tandem.run.metrics import Stopwatch
from tests.run.fake_run import REFERENCE_LOGPROB, TRAINER_LOGPROB, FakeRun

LOOSE = "fidelity.max_logprob_abs_diff_mean=0"  # the stand-ins' log-probs differ by an eighth
OFF = ["algorithm.kl.coef=0", LOOSE]
ROLLOUT = "algorithm.old_logprobs=rollout"
MIXED, EQUAL = [1.0, 0.0], [0.5, 0.5]


def groups(samples) -> list[list[float]]:
    return [[s.reward for s in samples if s.group == group] for group in range(1 + max(s.group for s in samples))]


def test_a_checkpoint_saved_in_the_middle_of_a_step_goes_on_from_the_rows_before_it(tmp_path):
    run = FakeRun(tmp_path, [[MIXED]], *OFF)
    run.loader_state = {"position": 8}
    with run.changing_weights(3):
        pass
    run.loader_state = {"position": 16}  # drawn for step 4, which then failed
    assert (run.trained_version, run.trained_loader_state) == (3, {"position": 8})


# dynamic sampling


def test_batches_are_drawn_until_enough_prompts_teach_something(tmp_path):
    run = FakeRun(
        tmp_path, [[MIXED, EQUAL, EQUAL], [EQUAL, [0.0, 1.0], EQUAL], [MIXED, MIXED, EQUAL]], "algorithm.dynamic_sampling=5", *OFF
    )
    samples, metrics = collect(run, 1, Stopwatch(run.track))
    assert groups(samples) == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    assert [s.prompt.row.id for s in samples[::2]] == ["rows:1", "rows:5", "rows:7"], "in the order drawn"
    assert {name.split("/")[1]: value for name, value in metrics.items() if name.startswith("dynamic")} == {
        "num_batches": 3, "num_equal": 5, "num_filled": 0, "num_surplus": 1, "accuracy_drawn": pytest.approx(0.5)
    }  # fmt: skip
    assert run.trainers.calls == ["rollout"] * 3 + ["sleep"], "the generators' weights are kept until the last batch is drawn"


def test_drawing_is_bounded_and_the_batch_is_full_even_so(tmp_path):
    run = FakeRun(tmp_path, [[EQUAL, EQUAL], [EQUAL, MIXED], [MIXED, MIXED]], "algorithm.dynamic_sampling=1", *OFF)
    samples, metrics = collect(run, 1, Stopwatch(run.track))
    assert groups(samples) == [MIXED, EQUAL]
    assert metrics["dynamic_sampling/num_batches"] == 2 and metrics["dynamic_sampling/num_filled"] == 1


def test_without_dynamic_sampling_a_batch_stays_as_it_was_drawn(tmp_path):
    run = FakeRun(tmp_path, [[EQUAL, MIXED]], *OFF)
    samples, metrics = collect(run, 1, Stopwatch(run.track))
    assert groups(samples) == [EQUAL, MIXED] and not any(name.startswith("dynamic") for name in metrics)


# what is skipped is not computed


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        (OFF, ["old"], ["old"]),
        ([*OFF, ROLLOUT], [], []),
        ([*OFF, ROLLOUT, "batch.mini_batch_size=2"], [], []),
        ([*OFF, ROLLOUT, "batch.mini_batch_size=1"], ["old"], ["old"]),
        ([*OFF, ROLLOUT, "batch.num_epochs=2"], ["old"], ["old"]),
        ([*OFF, ROLLOUT, "fidelity.max_logprob_abs_diff_max=1"], ["old"], ["old"]),
        ([LOOSE, "fidelity.max_kl_ref_at_start=1", "algorithm.kl.coef=0.1"], ["old", "reference"], ["old", "reference"]),
        ([LOOSE, "fidelity.max_kl_ref_at_start=1", "algorithm.kl.coef=0.1", ROLLOUT], ["old", "reference"], ["reference"]),
    ],
    ids=lambda settings: " ".join(settings) if isinstance(settings, list) else "",
)
def test_only_the_passes_that_something_needs_are_run(settings, first, second, tmp_path):
    run = FakeRun(tmp_path, [[MIXED, MIXED]] * 2, *settings)
    for step, expected in ((1, first), (2, second)):
        run.trainers.calls.clear()
        loop.one_step(run, step)
        assert [call for call in run.trainers.calls if call in ("old", "reference")] == expected
        assert run.trainers.calls[0] == "rollout"


def test_what_is_left_out_is_said(tmp_path):
    assert passes.notes(FakeRun(tmp_path, [[MIXED]], "algorithm.kl.coef=0.1").config) == []
    both = passes.notes(FakeRun(tmp_path, [[MIXED]], *OFF, ROLLOUT).config)
    assert [line.split(":")[0] for line in both] == ["no reference model", "no pass for old log-probs"]


def test_without_the_pass_the_update_tells_fidelity_and_a_difference_stops_the_run(tmp_path):
    run = FakeRun(tmp_path, [[MIXED]] * 2, "algorithm.kl.coef=0", "fidelity.max_logprob_abs_diff_mean=0.01", ROLLOUT)
    run.trainers.results = [{"ratio/log_abs_mean": 0.009}, {"ratio/log_abs_mean": 0.02}]
    assert loop.one_step(run, 1)["fidelity/logprob_abs_diff_mean"] == 0.009
    with pytest.raises(RunError, match="trainer and generator disagree"):
        loop.one_step(run, 2)


# rewards, advantages and weights


def test_a_response_s_kl_is_taken_from_its_reward_before_rewards_are_compared(tmp_path):
    settings = [LOOSE, "fidelity.max_kl_ref_at_start=1", "algorithm.kl.where=reward", "algorithm.kl.coef=0.1", "algorithm.kl.kind=k3"]
    run = FakeRun(tmp_path, [[[1.0, 1.0]]], *settings, "algorithm.advantage=dr_grpo", lengths=[2, 5])
    metrics = loop.one_step(run, 1)
    d = TRAINER_LOGPROB - REFERENCE_LOGPROB
    k3 = math.exp(-d) - 1 + d
    rewards = [1 - 0.1 * sum(k3 for _ in range(n)) for n in (2, 5)]
    [(sequences, _)] = run.trainers.updates
    assert [s.fields["advantages"][0] for s in sequences] == pytest.approx([(rewards[0] - rewards[1]) / 2, (rewards[1] - rewards[0]) / 2])
    assert metrics["reward/mean"] == pytest.approx(np.mean(rewards)) and metrics["accuracy/mean"] == 1.0
    assert metrics["kl/ref"] == pytest.approx(k3)


def test_the_kl_coefficient_of_a_step_is_the_one_adapted_after_the_step_before(tmp_path):
    settings = [LOOSE, "fidelity.max_kl_ref_at_start=1", "algorithm.kl.coef=0.1", "algorithm.kl.target=0.1", "algorithm.kl.horizon=10"]
    run = FakeRun(tmp_path, [[MIXED]] * 2, *settings)
    steps = [loop.one_step(run, step) for step in (1, 2)]  # kl/ref 0.5: far above, so 1 + 0.2 * 2 samples / 10
    assert [coef for _, coef in run.trainers.updates] == [step["kl/coef"] for step in steps] == pytest.approx([0.1, 0.1 * 1.04])


def test_responses_that_were_cut_off_weigh_nothing_and_do_not_change_what_the_others_weigh(tmp_path):
    settings = [*OFF, "data.max_response_length=8", "algorithm.mask_overlong=true", "algorithm.aggregation=token_mean"]
    run = FakeRun(tmp_path, [[[1.0, 0.0, 0.5]]], *settings, lengths=[2, 8, 3])
    loop.one_step(run, 1)
    [(sequences, _)] = run.trainers.updates
    assert [s.fields["weights"].tolist() for s in sequences] == [pytest.approx([0.2] * 2), [0.0] * 8, pytest.approx([0.2] * 3)]
    assert sequences[0].fields["advantages"][0] > 0, "it still counts in its group"


def test_when_all_were_cut_off_nothing_is_learned_and_nothing_breaks(tmp_path):
    run = FakeRun(tmp_path, [[MIXED]], *OFF, "data.max_response_length=3", "algorithm.mask_overlong=true")
    loop.one_step(run, 1)
    [(sequences, _)] = run.trainers.updates
    assert all((s.fields["weights"] == 0).all() for s in sequences)


def test_long_responses_pay_and_accuracy_does_not_show_it(tmp_path):
    settings = [*OFF, "data.max_response_length=10", "reward.overlong_buffer=4", "reward.overlong_factor=0.5"]
    run = FakeRun(tmp_path, [[[1.0, 1.0, 1.0]]], *settings, lengths=[6, 7, 10])
    metrics = loop.one_step(run, 1)
    assert metrics["reward/mean"] == pytest.approx(np.mean([1, 1 - 0.125, 0.5])) and metrics["accuracy/mean"] == 1.0
    assert metrics["reward/length_penalty"] == pytest.approx(-(0.125 + 0.5) / 3)


def test_remax_compares_with_the_greedy_response(tmp_path):
    run = FakeRun(tmp_path, [[[1.0]], [[0.0]]], *OFF, "algorithm.advantage=remax")
    for step in (1, 2):
        loop.one_step(run, step)
    assert [sequences[0].fields["advantages"][0] for sequences, _ in run.trainers.updates] == [0.75, -0.25]


# steps that are skipped


def test_steps_in_a_row_without_finite_gradients_are_counted_and_end_the_run_after_saving(tmp_path):
    run = FakeRun(tmp_path, [[MIXED, MIXED]] * 3, *OFF, "batch.mini_batch_size=1", "optimizer.max_skipped_steps=3")
    bad, good = {"update_ok": 0.0, "grad_norm": math.nan}, {}
    run.trainers.results = [bad, good, bad, bad, bad, good]
    counts = []
    for step in (1, 2):
        counts.append(loop.one_step(run, step)["update/num_skipped"])
        loop.stop_if_nothing_is_learned(run, step)
    assert counts == [1, 2] and not run.saved
    metrics = loop.one_step(run, 3)
    assert metrics["update/num_skipped_in_all"] == 4
    loop.stop_if_nothing_is_learned(run, 3)  # the last one was taken
    run.algorithm_state.num_skipped_in_a_row = 3
    with pytest.raises(RunError, match="3 optimizer steps in a row"):
        loop.stop_if_nothing_is_learned(run, 3)
    assert run.saved == [3]
