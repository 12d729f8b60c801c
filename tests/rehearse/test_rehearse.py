"""A layout is run with a stand-in of the model, and compared with one process."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tandem.config.layout import check_layout
from tandem.config.schema import ParallelConfig
from tandem.qwen3_5.tiny import layout_sizes
from tandem.rehearse.rehearse import _compared
from tandem.rehearse.standin import stand_in
from tests.cli.commands import tandem
from tests.run.marked import command_of

SMALL = ("trainer.devices_per_node=4", "parallel.tp=2", "parallel.pp=2", "parallel.ep=2", "rollout.tp=2")


@pytest.mark.parallel
def test_four_ranks_do_what_one_does_and_tell_what_they_hold(tmp_path: Path) -> None:
    ended = tandem("rehearse", "qwen3_5_35b_a3b", "device=npu", *SMALL, "--json", cwd=tmp_path, timeout=200)
    assert ended.code == 0, ended.err + ended.out
    told = json.loads(ended.out)
    assert (told["ok"], told["faults"], len(told["ranks"])) == (True, [], 4)
    assert told["max_abs_logprob_diff"] <= 1e-4
    assert [rank["stage"] for rank in told["ranks"]] == [0, 0, 1, 1]
    assert [rank["layers"] for rank in told["ranks"]] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [rank["experts"] for rank in told["ranks"]] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    published = Counter(name for rank in told["ranks"] for name in rank["published"])
    assert set(published.values()) == {1}
    assert all(rank["checkpoint_bytes"] > 0 and rank["optimizer_bytes"] >= rank["weight_bytes"] // 2 for rank in told["ranks"])


@pytest.mark.parallel
def test_a_rehearsal_that_is_killed_leaves_no_rank(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tandem", "rehearse", "qwen3_5_35b_a3b", "device=npu", *SMALL]
    process = psutil.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ends, family = time.monotonic() + 120, []
        while len(family) < 3:  # the starter, and two ranks at least
            assert process.poll() is None and time.monotonic() < ends
            time.sleep(0.1)
            family = [each for each in process.children(recursive=True) if "tandem.engine.fork_ranks" in command_of(each)]
    finally:
        process.kill()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_an_illegal_layout_is_refused_before_anything_starts(tmp_path: Path) -> None:
    ended = tandem("rehearse", "qwen3_5_35b_a3b", "device=npu", "parallel.tp=4", cwd=tmp_path)
    assert ended.code == 2
    assert "key-value heads" in ended.out + ended.err


@pytest.mark.parametrize("sizes", [{"tp": 2, "pp": 4, "ep": 16}, {"tp": 2, "pp": 2, "vpp": 2, "cp": 4, "ep": 8, "etp": 2}, {"pp": 10}])
def test_the_stand_in_can_be_cut_as_the_layout_asks(sizes: dict[str, int]) -> None:
    shape, parallel = stand_in(ParallelConfig(**sizes)), ParallelConfig(**sizes)
    check_layout(layout_sizes(shape)[0], parallel, layout_sizes(shape)[1])


def test_what_differs_from_one_process_is_a_fault() -> None:
    import numpy as np

    from tandem.rehearse.rank import Held, RankResult

    held = Held(0, 0, [0], [0], 1, 4, 8, 9, ["a", "b"], 8)
    right = RankResult(held, {0: np.array([-1.0])}, 2.0, 3.0, True)
    assert _compared(right, [right], {"a", "b"}, 1.0).faults == []
    for wrong, said in (
        (RankResult(held, {0: np.array([-1.001])}, 2.0, 3.0, True), "log-probs differ"),
        (RankResult(held, {}, 2.0, 3.0, True), "0 of 1 sequences"),
        (RankResult(held, right.scores, 2.001, 3.0, True), "loss differs"),
        (RankResult(held, right.scores, 2.0, 3.1, True), "gradient norm differs"),
        (RankResult(held, right.scores, 2.0, 3.0, False), "after reading their checkpoint"),
    ):
        assert any(said in fault for fault in _compared(right, [wrong], {"a", "b"}, 1.0).faults), said
    assert "2 tensors" in _compared(right, [right, right], {"a", "b"}, 1.0).faults[-1]
    assert "1 tensors" in _compared(right, [right], {"a", "b", "c"}, 1.0).faults[-1]
