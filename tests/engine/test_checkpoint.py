"""A checkpoint holds the model and the optimizer: the steps after loading are those that would have come.

One step would not show it: its loss and gradient norm are computed before the optimizer's state is used.
"""

import pytest

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_each, fork_ranks

BF16, ON_CPU = {"model": {"dtype": "bfloat16"}}, {"optimizer": {"on_cpu": True, "eps": 1e-4}}
SAVED_AND_LOADED = {  # layout and settings, of the run that saves and of the one that loads
    "dp2": ({}, {}, {}, {}),
    "dp2_bf16_with_parameters_in_fp32": ({}, BF16, {}, BF16),
    "dp2_bf16_optimizer_on_cpu": ({}, BF16 | ON_CPU, {}, BF16 | ON_CPU),
    "tp2_then_pp2": ({"tp": 2}, {}, {"pp": 2}, {}),
    "tp2_pp2_then_ep2_dp2": ({"tp": 2, "pp": 2}, {}, {"ep": 2}, {}),
    "optimizer_on_device_then_on_cpu": ({"tp": 2}, {"optimizer": {"eps": 1e-4}}, {"pp": 2}, ON_CPU),
    "vision_cut_then_whole_ranks": ({"tp": 2, "vision_tp": True}, {}, {"pp": 2, "vision_tp": True}, {}),
}


FOLDERS = ("beside", "again")  # of a case: what was saved, and that loaded and saved again


@pytest.fixture(scope="module")
def measured(tiny_model, sequences, tmp_path_factory) -> dict[str, tuple[list[dict], list[dict], list[dict]]]:
    """Of each case the metrics of the run that saves and of the one that loads, on each rank; what differs between their checkpoints."""
    calls = []
    for case, (saved, settings, loaded, other_settings) in SAVED_AND_LOADED.items():
        call = {"model_path": str(tiny_model), "sequences": sequences, "folder": str(tmp_path_factory.mktemp(case))}
        for function, layout, sections in (("train_and_save", saved, settings), ("load_and_train", loaded, other_settings)):
            parallel = ParallelConfig(**layout)
            calls.append((f"tests.engine.ranks:{function}", parallel, max(2, parallel.tp * parallel.pp), call | sections))
        calls.append(
            ("tests.engine.ranks:differing_tensors", ParallelConfig(), 1, {"folders": [f"{call['folder']}/{name}" for name in FOLDERS]})
        )
    results = fork_each(calls)
    return {case: tuple(results[3 * i : 3 * i + 3]) for i, case in enumerate(SAVED_AND_LOADED)}


@pytest.mark.parametrize("case", SAVED_AND_LOADED)
def test_the_steps_after_loading_are_those_that_would_have_come(case, measured):
    (saved, _, loaded, _), (without, after, _) = SAVED_AND_LOADED[case], measured[case]
    losses = [sum(share.get("loss/policy", 0.0) for share in shares) for shares in (without, after)]
    tolerance = 0.0 if saved == loaded else 1e-5
    assert losses[1] == pytest.approx(losses[0], rel=tolerance, abs=0)
    assert after[0]["grad_norm"] == pytest.approx(without[0]["grad_norm"], rel=tolerance, abs=0)


@pytest.mark.parametrize("case", SAVED_AND_LOADED)
def test_weights_and_optimizer_state_are_those_that_were_saved_under_any_layout(case, measured):
    """What was loaded, saved again and read whole."""
    [compared] = measured[case][2]
    assert compared["differing"] == []
    assert {name for name in ("exp_avg", "exp_avg_sq", "decoder") if any(name in key for key in compared["equal"])} == {
        "exp_avg",
        "exp_avg_sq",
        "decoder",
    }


def test_saving_leaves_no_process_behind(measured):
    """Megatron's queue of results would: a process of half a GB that a rank keeps."""
    assert {share["num_children"] for without, *_ in measured.values() for share in without} == {0}


@pytest.mark.parametrize("case", SAVED_AND_LOADED)
def test_what_is_written_beside_the_steps_that_follow_has_the_bytes_of_a_save_that_all_waited_for(case, measured):
    """Steps change weights and moments in place: what is not a copy is saved with the values of a later step."""
    for share in measured[case][0]:
        assert share["differing"] == set()
        assert not share["written_early"] or not share["copied"], "the steps were to come before the files"
    assert max(share["copied"] for share in measured[case][0]) > 100_000
    assert {share["kept"] for share in measured[case][0]} == {0}, "the copy is freed once it is written"


def test_a_checkpoint_that_cannot_be_written_is_an_error_that_says_why(tiny_model, tmp_path):
    told = fork_ranks("tests.engine.ranks:save_on_a_full_disk", ParallelConfig(), 1, model_path=str(tiny_model), folder=str(tmp_path))
    assert "could not be written" in told[0]
    assert "File too large" in told[0]


@pytest.fixture(scope="module")
def faults(tmp_path_factory) -> list:
    """Of one rank: saves that are interrupted, and loads of checkpoints with foreign pickles."""
    calls = [("tests.engine.fault_ranks:interrupted_saves", "saves"), ("tests.engine.hostile_ranks:hostile_loads", "hostile")]
    results = fork_each([(call, ParallelConfig(), 1, {"folder": str(tmp_path_factory.mktemp(name))}) for call, name in calls])
    return [told for [told] in results]


def test_a_save_interrupted_at_any_file_operation_of_rank_or_controller_leaves_the_checkpoint_before(faults):
    assert faults[0]["wrong"] == []
    assert faults[0]["refused"] > 30 and faults[0]["killed"] > 30, "every operation once"


@pytest.mark.parametrize("place", [".metadata", "common.pt", "__0_0.distcp"])
def test_a_pickle_in_a_checkpoint_that_names_a_command_is_refused_and_does_not_run(place, faults):
    """Sizes and checksums would not stop it: whoever writes such a file writes its manifest, too."""
    told, ran = faults[1][place]
    assert not ran
    assert "names code to run" in told and "system" in told
    assert faults[1]["nowhere"] == ("loaded 0.5 3 4950.0", False), "the same checkpoint without it loads"
