"""What is legal and of no effect is said when a run starts, and what is right is not."""

import pytest

from tandem.config.load import load
from tandem.config.notes import ignored


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], []),
        (["algorithm.loss=sapo"], []),
        (["algorithm.loss=sapo", "algorithm.clip_low=0.1", "algorithm.clip_high=0.3"], ["clip_low = 0.1", "clip_high = 0.3"]),
        (["algorithm.loss=cispo", "algorithm.clip_low=1", "algorithm.clip_dual=3"], ["clip_dual = 3.0"]),
        (["algorithm.tau_positive=2"], ["tau_positive = 2.0"]),
        (["algorithm.advantage=rloo", "algorithm.norm_by_std=false"], ["norm_by_std = False"]),
        (["algorithm.gamma=0.9"], ["gamma = 0.9"]),
        (["algorithm.advantage=gae", "algorithm.gamma=0.9", "critic.clip=0"], []),
        (["critic.optimizer.lr=1e-3"], ["critic.* is not used"]),
        (["algorithm.mask_overlong=true", "reward.overlong_buffer=4"], ["reward.overlong_buffer"]),
    ],
)
def test_settings_that_the_chosen_loss_or_advantage_does_not_read_are_named(overrides, told):
    lines = ignored(load("demo", overrides, env={}))
    assert len(lines) == len(told) and all(part in line for part, line in zip(told, lines)), lines


def test_the_readers_in_the_table_are_those_in_the_code():
    """By the text of each loss and advantage: whoever reads `settings.clip_low` says so."""
    import inspect

    from tandem.algorithms import names
    from tandem.algorithms.losses.ppo_clip import clipped_surrogate
    from tandem.config.notes import OF_ADVANTAGES, OF_LOSSES

    for room, registered, table in (("losses", names.LOSSES, OF_LOSSES), ("advantages", names.ADVANTAGES, OF_ADVANTAGES)):
        for name in registered:
            source = inspect.getsource(names.get(room, name))
            source += inspect.getsource(clipped_surrogate) if "clipped_surrogate(" in source else ""
            source += "settings.lam settings.gamma" if "generalized(" in source else ""
            assert {key for key in table if f"settings.{key}" in source} == {key for key, readers in table.items() if name in readers}, name
