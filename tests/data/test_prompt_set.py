"""Prompts are measured once, in other processes if asked, remembered from run to run, and made when they are asked for."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from tandem.data import prompt_set
from tandem.data.bad_rows import BadRows
from tandem.data.prompt_set import build_prompts
from tandem.errors import UserError
from tests.data.files import encoded, picture, row

ROWS = [
    replace(row(f"<image>What is it? {'1 ' * i}", [encoded(picture(64 + 32 * i, 64, seed=i))]), id=f"test.parquet:{i}") for i in range(6)
]


@pytest.fixture
def counted(builder_with):
    """`counted(**settings)` -> a builder that notes which rows it processes."""

    def make(**settings):
        builder = builder_with(**settings)
        builder.seen, build = [], builder.build
        builder.build = lambda row: builder.seen.append(row.id) or build(row)
        return builder

    return make


def assert_same(ours, theirs) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert a.row == b.row and np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.pixel_values, b.pixel_values)


def test_what_fits_in_memory_is_processed_once_and_the_rest_when_it_comes(counted):
    builder = counted(keep_bytes=1 << 30)
    made = build_prompts(ROWS, builder)
    assert_same(made, [made[i] for i in range(6)])
    assert len(builder.seen) == 6
    poor = counted(keep_bytes=0)
    again = build_prompts(ROWS, poor)
    assert_same(again, made)
    assert len(poor.seen) >= 2 * 6 - 1 and again._kept_bytes == again[5].num_bytes, "one at most is kept"


def test_lengths_are_remembered_for_the_same_content_and_processor_only(counted, tmp_path):
    first = build_prompts(ROWS[:4], counted(max_prompt_length=60), cache=tmp_path)
    assert 0 < first.num_overlong < 4
    builder = counted(max_prompt_length=60)
    second = build_prompts(ROWS[:4], builder, cache=tmp_path)
    assert builder.seen == [] and (second.lengths, second.num_overlong) == (first.lengths, first.num_overlong)
    assert_same(second, first)
    changed = [replace(ROWS[0], images=[encoded(picture(64, 64, seed=9))]), *ROWS[1:4]]
    builder = counted(max_prompt_length=60)
    build_prompts(changed, builder, cache=tmp_path)
    assert builder.seen == ["test.parquet:0"]
    builder = counted(max_prompt_length=60, thinking=False)
    build_prompts(ROWS[:4], builder, cache=tmp_path)
    assert len(builder.seen) == 4, "another template, other lengths"


def test_another_template_or_image_processor_has_lengths_of_its_own(counted):
    """Also of a model that is named by the hub: no folder tells them apart."""
    same, template, pixels = counted(), counted(), counted()
    for builder in (template, pixels):
        builder.processor = deepcopy(builder.processor)
    template.processor.chat_template += " "
    pixels.processor.image_processor.merge_size = 4
    assert len({builder.fingerprint for builder in (same, counted(), template, pixels)}) == 3


def test_a_cache_that_is_cut_off_or_cannot_be_written_costs_time_only(counted, tmp_path):
    builder = counted()
    (tmp_path / f"{builder.fingerprint}.json").write_text('{"abc": 1')
    assert len(build_prompts(ROWS[:2], builder, cache=tmp_path)) == 2
    assert len(build_prompts(ROWS[:2], builder, cache=tmp_path / "a file" / "below")) == 2
    (tmp_path / "file").write_text("")
    assert len(build_prompts(ROWS[:2], builder, cache=tmp_path / "file")) == 2


def test_several_processes_measure_what_one_does_and_find_the_same_bad_rows(builder_with):
    broken = replace(ROWS[1], images=[b"nonsense"], id="test.parquet:1")
    rows = [ROWS[0], broken, *ROWS[2:]]
    alone, together = BadRows(skip=True), BadRows(skip=True)
    seen: list[tuple[int, int]] = []
    limit = 70
    one = build_prompts(rows, builder_with(max_prompt_length=limit), bad=alone)
    several = build_prompts(rows, builder_with(max_prompt_length=limit, num_workers=2), lambda *at: seen.append(at), bad=together)
    assert several.lengths == one.lengths and several.num_overlong == one.num_overlong > 0
    assert_same(several, one)
    assert alone.counts == together.counts == {"image": 1} and seen == [(i, 6) for i in range(1, 7)]


def test_a_prompt_that_cannot_be_cut_is_told_at_the_start_also_when_its_length_was_known(builder_with, tmp_path):
    settings = {"max_prompt_length": 20, "filter_overlong": False, "truncation": "left"}
    build_prompts(ROWS[:1], builder_with(max_prompt_length=1000), cache=tmp_path)
    with pytest.raises(UserError, match="without all its text it would still be longer"):
        build_prompts(ROWS[:1], builder_with(**settings), cache=tmp_path)


def test_bad_rows_and_overlong_ones_together_can_leave_none(builder_with):
    with pytest.raises(UserError, match="no prompt is left"):
        build_prompts([replace(ROWS[0], images=[b"x"])], builder_with(), bad=BadRows(skip=True))


def test_it_is_a_sequence(builder_with):
    made = build_prompts(ROWS[:3], builder_with())
    assert [p.row.id for p in made[-2:]] == ["test.parquet:1", "test.parquet:2"] and made[-1].row.id == "test.parquet:2"
    assert [len(p.token_ids) for p in made] == made.lengths
    with pytest.raises(IndexError):
        made[3]
    assert prompt_set.PromptSet([], [], builder_with(), 0)[:] == []
