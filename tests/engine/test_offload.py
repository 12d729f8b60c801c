"""Offloaded training is the same training: bit for bit, with the device's memory free in between."""

import numpy as np
import pytest
import torch

from tandem.config.schema import ParallelConfig
from tandem.engine.fork_ranks import fork_ranks
from tandem.engine.offload import Offloader
from tests.engine.test_packed import text_sequence, weighted


def test_views_of_an_offloaded_storage_are_whole_again_and_the_memory_was_free_between():
    base = torch.arange(10.0)
    first, rest, gradient = base[:3], base[3:], torch.ones(4)
    parameters, gradients = Offloader([first, rest]), Offloader([gradient], keep=False)
    assert parameters.num_bytes == 40, "two views of one storage count once"
    for part in (parameters, gradients):
        part.out()
        part.out()
    assert base.untyped_storage().nbytes() == 0 and gradient.untyped_storage().nbytes() == 0
    for part in (gradients, parameters):
        part.back()
        part.back()
    assert first.tolist() == [0, 1, 2] and rest.tolist() == [3, 4, 5, 6, 7, 8, 9] and gradient.tolist() == [0, 0, 0, 0]


@pytest.mark.parallel
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offloaded_training_is_bit_for_bit_the_training_that_stays(dtype, tiny_model, sequences):
    """Two data-parallel ranks with tensor and expert parallelism; optimizer state is sharded."""
    batch = weighted([sequences[1], text_sequence(30), text_sequence(20, 1), sequences[2]])
    call = {"model_path": str(tiny_model), "sequences": batch, "model": {"dtype": dtype}}
    layout = ParallelConfig(tp=2, ep=2)
    stays, moves = (
        fork_ranks("tests.engine.ranks:train_with_offload", layout, 4, **call, trainer={"offload": offload}) for offload in (False, True)
    )
    for ours, theirs in zip(moves, stays):
        assert ours["metrics"] == theirs["metrics"]
        assert ours["scores"].keys() == theirs["scores"].keys()
        for index, (logprobs, _) in theirs["scores"].items():
            np.testing.assert_array_equal(ours["scores"][index][0], logprobs)
        assert ours["bytes_out"] == 0, "parameters, gradients and optimizer state have left"
        assert theirs["bytes_out"] > 1e6
