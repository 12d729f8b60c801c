"""A checkpoint holds the model and the optimizer: the steps after loading are those that would have come.

One step would not show it: its loss and gradient norm are computed before the optimizer's state is used.
"""

import pytest

from tandem.config.schema import ParallelConfig
from tandem.engine.checkpoint import _writer
from tandem.engine.fork_ranks import fork_each, fork_ranks

BF16, ON_CPU = {"model": {"dtype": "bfloat16"}}, {"optimizer": {"on_cpu": True, "eps": 1e-4}}
SAVED_AND_LOADED = {  # layout and settings, of the run that saves and of the one that loads
    "dp2": ({}, {}, {}, {}),
    "dp2_bf16_with_parameters_in_fp32": ({}, BF16, {}, BF16),
    "dp2_bf16_optimizer_on_cpu": ({}, BF16 | ON_CPU, {}, BF16 | ON_CPU),
    "tp2_then_pp2": ({"tp": 2}, {}, {"pp": 2}, {}),
    "optimizer_on_device_then_on_cpu": ({"tp": 2}, {"optimizer": {"eps": 1e-4}}, {"pp": 2}, ON_CPU),
    "vision_cut_then_whole_ranks": ({"tp": 2, "vision_tp": True}, {}, {"pp": 2, "vision_tp": True}, {}),
}


@pytest.fixture(scope="module")
def measured(tiny_model, sequences, tmp_path_factory) -> dict[str, tuple[list[dict], list[dict]]]:
    """Of each case the metrics of the run that saves and of the one that loads, on each rank."""
    calls = []
    for case, (saved, settings, loaded, other_settings) in SAVED_AND_LOADED.items():
        call = {"model_path": str(tiny_model), "sequences": sequences, "folder": str(tmp_path_factory.mktemp(case))}
        calls.append(("tests.engine.ranks:train_and_save", ParallelConfig(**saved), 2, call | settings))
        calls.append(("tests.engine.ranks:load_and_train", ParallelConfig(**loaded), 2, call | other_settings))
    results = fork_each(calls)
    return {case: (results[2 * i], results[2 * i + 1]) for i, case in enumerate(SAVED_AND_LOADED)}


@pytest.mark.parametrize("case", SAVED_AND_LOADED)
def test_the_steps_after_loading_are_those_that_would_have_come(case, measured):
    (saved, _, loaded, _), (without, after) = SAVED_AND_LOADED[case], measured[case]
    losses = [sum(share.get("loss/policy", 0.0) for share in shares) for shares in (without, after)]
    tolerance = 0.0 if saved == loaded else 1e-5
    assert losses[1] == pytest.approx(losses[0], rel=tolerance, abs=0)
    assert after[0]["grad_norm"] == pytest.approx(without[0]["grad_norm"], rel=tolerance, abs=0)


def test_saving_leaves_no_process_behind(measured):
    """Megatron's queue of results would: a process of half a GB that a rank keeps."""
    assert {share["num_children"] for without, _ in measured.values() for share in without} == {0}


def test_a_checkpoint_that_cannot_be_written_is_an_error_that_says_why(tiny_model, tmp_path):
    told = fork_ranks("tests.engine.ranks:save_on_a_full_disk", ParallelConfig(), 1, model_path=str(tiny_model), folder=str(tmp_path))
    assert "could not be written" in told[0]
    assert "File too large" in told[0]


def test_a_rank_answers_for_its_own_files_and_for_none_that_another_is_still_writing():
    names = ["__3_0.distcp", "__12_1.distcp", "random_00003.safetensors", ".metadata", "metadata.json", "common.pt", ".tmpGEDQFZ"]
    assert [_writer(name) for name in names] == [3, 12, 3, 0, 0, 0, None]
