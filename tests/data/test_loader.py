"""The loader: every row once an epoch, an order that seed and epoch decide, and a resume that goes on exactly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.data.loader import Loader
from tandem.data.mix import parse_weights, shares
from tandem.errors import UserError


def take(loader: Loader, count: int) -> list[list[int]]:
    return [loader.next()[1] for _ in range(count)]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


@given(num_rows=st.integers(1, 40), batch_size=st.integers(1, 50), epochs=st.integers(1, 4), shuffle=st.booleans())
def test_every_row_is_given_out_once_an_epoch(num_rows, batch_size, epochs, shuffle):
    loader = Loader(num_rows, batch_size, seed=3, shuffle=shuffle)
    rows = flat(take(loader, loader.batches_in(epochs)))
    for epoch in range(epochs):
        assert sorted(rows[epoch * num_rows : (epoch + 1) * num_rows]) == list(range(num_rows))
    assert epochs * num_rows <= len(rows) < epochs * num_rows + batch_size  # as few batches as will do


def test_a_batch_that_an_epoch_cannot_fill_goes_on_in_the_next():
    loader = Loader(num_rows=5, batch_size=3, shuffle=False)
    assert [loader.next() for _ in range(5)] == [(0, [0, 1, 2]), (0, [3, 4, 0]), (1, [1, 2, 3]), (1, [4, 0, 1]), (2, [2, 3, 4])]


def test_fewer_rows_than_a_batch_still_give_whole_batches():
    assert flat(take(Loader(num_rows=2, batch_size=5, shuffle=False), 2)) == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]


def test_the_order_is_decided_by_the_seed_and_new_in_each_epoch():
    orders = {seed: take(Loader(50, 50, seed), 3) for seed in (0, 1)}
    assert orders[0] == take(Loader(50, 50, 0), 3)
    different = [tuple(order) for epochs in orders.values() for order in epochs]
    assert len(set(different)) == 6  # no two epochs of no two seeds alike, and epoch 1 of seed 0 is not epoch 0 of seed 1
    assert list(range(50)) not in orders[0]


def test_the_order_of_a_seed_is_the_one_that_checkpoints_count_on():
    # numpy may change what a generator gives: a checkpoint would then go on in another order without a word
    assert Loader(10, 10, seed=7).next() == (0, [8, 0, 7, 1, 3, 6, 2, 4, 5, 9])


@given(
    num_rows=st.integers(1, 23),
    batch_size=st.integers(1, 9),
    before=st.integers(0, 12),
    new_size=st.integers(1, 9),
    shuffle=st.booleans(),
)
def test_a_resumed_loader_gives_the_rows_of_one_that_never_stopped(num_rows, batch_size, before, new_size, shuffle):
    _, whole = Loader(num_rows, 200, 5, shuffle).next()
    loader = Loader(num_rows, batch_size, 5, shuffle)
    take(loader, before)
    state = json.loads(json.dumps(loader.state_dict()))  # as a checkpoint holds it
    resumed = Loader(num_rows, new_size, 5, shuffle)  # in the middle of an epoch, perhaps with another batch size
    take(resumed, 2)  # what was done before loading leaves no trace
    resumed.load_state_dict(state)
    rows = flat(take(resumed, 10))
    assert rows == whole[before * batch_size :][: len(rows)]
    if new_size == batch_size:
        assert take(loader, 10) == [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]


def test_a_resume_exactly_at_the_end_of_an_epoch_begins_the_next():
    loader = Loader(6, 3, 1)
    first = flat(take(loader, 2))
    resumed = Loader(6, 3, 1)
    resumed.load_state_dict(loader.state_dict())
    epoch, batch = resumed.next()
    second = batch + resumed.next()[1]
    assert epoch == 1 and sorted(first) == sorted(second) == list(range(6)) and first != second


def test_a_saved_state_does_not_move_with_the_loader():
    loader = Loader(10, 4)
    loader.next()
    state = loader.state_dict()
    loader.next()
    assert state["position"] == 4


@pytest.mark.parametrize(("key", "other"), [("num_rows", 11), ("seed", 2), ("shuffle", False)])
def test_a_state_of_another_order_is_refused(key, other):
    settings = {"num_rows": 10, "seed": 1, "shuffle": True}
    state = Loader(batch_size=2, **settings).state_dict()
    loader = Loader(batch_size=2, **{**settings, key: other})
    with pytest.raises(UserError, match=f"{key} was {settings[key]}, now {other}"):
        loader.load_state_dict(state)
    assert loader.position == 0


SOURCES = ["a"] * 6 + ["b"] * 4 + ["c"] * 2


def mixed(shuffle: bool = True, batch_size: int = 5, **weights: float) -> Loader:
    return Loader(len(SOURCES), batch_size, seed=7, shuffle=shuffle, sources=SOURCES, weights=weights)


def test_shares_follow_the_weights_and_add_up():
    assert shares(12, {"a": 1, "b": 1, "c": 2}) == {"a": 3, "b": 3, "c": 6}
    assert shares(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}
    assert shares(2, {"a": 1000, "b": 1}) == {"a": 2, "b": 0}


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_source_has_its_share_of_every_epoch_and_all_its_rows_before_any_again(shuffle):
    rows = flat(take(mixed(shuffle, batch_size=1, a=1, b=1, c=2), 12 * 6))
    for epoch in range(6):
        part = [SOURCES[row] for row in rows[12 * epoch : 12 * epoch + 12]]
        assert {name: part.count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 6}
        for name in "abc":
            counts = [rows[: 12 * epoch + 12].count(row) for row in range(12) if SOURCES[row] == name]
            assert max(counts) - min(counts) <= 1, "a row came again before another came"


def test_without_shuffling_sources_take_turns():
    assert [SOURCES[row] for row in flat(take(mixed(False, batch_size=1, a=1, b=1, c=2), 4))] == ["c", "a", "b", "c"]


def test_a_mixed_order_goes_on_from_any_position_and_only_with_its_weights():
    whole = flat(take(mixed(a=1, b=1, c=2), 20))
    first = mixed(a=1, b=1, c=2)
    take(first, 7)
    state = json.loads(json.dumps(first.state_dict()))
    second = mixed(batch_size=3, a=1, b=1, c=2)
    second.load_state_dict(state)
    assert flat(take(second, 21)) == whole[35:98]
    with pytest.raises(UserError, match=r"weights was .*2.*, now .*3"):
        mixed(a=1, b=1, c=3).load_state_dict(state)
    with pytest.raises(UserError, match=r"weights was \{\}"):
        mixed(a=1, b=1, c=2).load_state_dict(Loader(12, 5, seed=7).state_dict())


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        (["a=1", "b=1"], "no weight for 'c'"),
        (["a=1", "b=1", "c=1", "d=1"], "a weight for 'd'"),
        (["a=1", "b=x", "c=1"], "'b=x'"),
        (["a=0", "b=1", "c=1"], "'a=0'"),
        (["a"], "'a'"),
    ],
)
def test_weights_that_do_not_fit_the_rows_are_refused(entries, what):
    with pytest.raises(UserError, match=what):
        parse_weights(entries, SOURCES)
    assert parse_weights(["a=1", "b=2.5", "c=1e-3"], SOURCES) == {"a": 1.0, "b": 2.5, "c": 0.001}
