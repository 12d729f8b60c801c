"""Rows of parquet files: what is read, what is refused, and whether the refusal names file, row and reason."""

import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandem.data.rows import INSTRUCTION, check_files, read_rows
from tandem.errors import UserError
from tests.data.files import SCHEMA, encoded, picture, record, write

PUBLISHED = pa.schema([("images", SCHEMA.field("images").type), ("problem", pa.string()), ("answer", pa.string())])


def refusal(paths) -> UserError:
    with pytest.raises(UserError) as caught:
        check_files(paths if isinstance(paths, list) else [paths])
    return caught.value


def test_every_field_of_a_row_is_what_the_file_holds(tmp_path):
    pictures = [encoded(picture(seed=1)), encoded(picture(seed=2), "JPEG")]
    system = {"role": "system", "content": "Be brief. 请简短。"}
    two = record("<image> and <image>: ∠ABC = 30°, naïve 😀?", pictures, answer="30°")
    two["prompt"].insert(0, system)
    path = write(tmp_path / "geo.parquet", [record(), two])
    first, second = read_rows([path])
    assert (first.id, second.id) == ("geo.parquet:0", "geo.parquet:1")
    assert second.messages == [system, {"role": "user", "content": "<image> and <image>: ∠ABC = 30°, naïve 😀?"}]
    assert second.images == pictures
    assert (second.ground_truth, second.data_source, second.extra_info) == ("30°", "test", {"index": 0, "response": "seven"})
    assert check_files([path]) == 2


def test_geometry3k_as_published_reads_like_its_processed_form(tmp_path):
    image = encoded(picture())
    published = {"images": [{"bytes": image, "path": None}], "problem": "<image>Find $x$.", "answer": "2 \\sqrt { 221 }"}
    raw = write(tmp_path / "raw" / "train.parquet", [published], PUBLISHED)
    processed = write(tmp_path / "processed" / "train.parquet", [record(f"<image>Find $x$. {INSTRUCTION}", [image], "2 \\sqrt { 221 }")])
    [got], [expected] = read_rows([raw]), read_rows([processed])
    assert (got.id, got.messages, got.images, got.ground_truth) == (expected.id, expected.messages, expected.images, expected.ground_truth)
    assert got.data_source == "hiyouga/geometry3k"
    assert INSTRUCTION.endswith("The final answer MUST BE put in \\boxed{}.")


def test_published_rows_without_a_problem_or_with_a_mark_too_many_are_refused(tmp_path):
    rows = [{"images": [], "problem": None, "answer": "1"}]
    assert "the prompt is empty" in refusal(write(tmp_path / "a.parquet", rows, PUBLISHED)).why
    rows = [{"images": [{"bytes": encoded(picture()), "path": None}], "problem": "<image><image>", "answer": "1"}]
    assert refusal(write(tmp_path / "b.parquet", rows, PUBLISHED)).why == "2 <image> marks for 1 images"


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), (-3, "-3"), (7.0, "7"), (0.5, "0.5"), (1e-7, "0.0000001"), (1e16, "10000000000000000")]
)
def test_an_answer_stored_as_a_number_is_its_text_in_full(tmp_path, value, text):
    [row] = read_rows([write(tmp_path / "a.parquet", [record(answer=value)], schema=None)])
    assert row.ground_truth == text


@pytest.mark.parametrize("value", [None, "", " \n", float("nan"), float("inf")])
def test_a_row_that_no_response_could_answer_is_refused(tmp_path, value):
    rows = [record(answer=1.0 if isinstance(value, float) else "1"), record(answer=value)]
    error = refusal(write(tmp_path / "a.parquet", rows, schema=None))
    assert "a.parquet: row 1 (counted from 0)" in error.what
    assert "answer is null or empty" in error.why


@pytest.mark.parametrize(
    ("text", "num_images", "why"),
    [
        ("no mark", 1, "0 <image> marks for 1 images"),
        ("<image>", 2, "1 <image> marks for 2 images"),
        ("<image> <image>", 1, "2 <image> marks for 1 images"),
    ],
)
def test_marks_and_images_that_do_not_match_are_refused(tmp_path, text, num_images, why):
    path = write(tmp_path / "a.parquet", [record(), record(text, [encoded(picture())] * num_images)])
    error = refusal(path)
    assert (error.what, error.why) == (f"{path}: row 1 (counted from 0) cannot be used", why)


def test_marks_are_counted_over_all_messages(tmp_path):
    row = record("and <image>?", [encoded(picture(seed=1)), encoded(picture(seed=2))])
    row["prompt"] = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "A circle."}, *row["prompt"]]
    assert len(read_rows([write(tmp_path / "a.parquet", [row])])[0].images) == 2


def test_a_literal_mark_without_images_is_text_but_not_in_a_file_that_lost_its_column(tmp_path):
    row = record("Explain the HTML tag <image>.", [])
    assert read_rows([write(tmp_path / "a.parquet", [row])])[0].images == []
    del row["images"]
    path = write(tmp_path / "b.parquet", [row], schema=SCHEMA.remove(SCHEMA.get_field_index("images")))
    assert "column 'images' is missing" in refusal(path).why


def test_text_rows_need_no_images_column(tmp_path):
    row = record("What is 3 + 4?", [])
    del row["images"]
    assert read_rows([write(tmp_path / "a.parquet", [row], schema=None)])[0].images == []


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ([], "the prompt is empty"),
        (None, "the prompt is empty"),
        ([{"role": "user", "content": None}], "lacks its role or content"),
        ([{"role": None, "content": "x"}], "lacks its role or content"),
        ([{"role": "tool", "content": "x"}], "lacks its role or content"),
        ([None], "lacks its role or content"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "ends with a message of assistant"),
        ([{"role": "system", "content": "x"}], "ends with a message of system"),
    ],
)
def test_a_malformed_prompt_is_refused(tmp_path, prompt, why):
    error = refusal(write(tmp_path / "a.parquet", [record(), {**record("x", []), "prompt": prompt}]))
    assert "row 1" in error.what and why in error.why


def test_null_columns_count_as_absent(tmp_path):
    row = {**record("x", []), "images": None, "data_source": None, "extra_info": None}
    [read] = read_rows([write(tmp_path / "a.parquet", [row])])
    assert (read.images, read.data_source, read.extra_info) == ([], "", {})
    assert "answer is null" in refusal(write(tmp_path / "b.parquet", [{**row, "reward_model": None}])).why


def test_images_are_read_beside_their_file_and_bytes_win_over_a_path(tmp_path):
    data = encoded(picture(seed=3))
    (tmp_path / "data" / "images").mkdir(parents=True)
    (tmp_path / "data" / "images" / "a.png").write_bytes(data)
    entries = [{"bytes": None, "path": "images/a.png"}, {"bytes": None, "path": str(tmp_path / "data/images/a.png")}]
    entries.append({"bytes": data, "path": "not there.png"})
    row = {**record("<image><image><image>"), "images": entries}
    assert read_rows([write(tmp_path / "data" / "a.parquet", [row])])[0].images == [data] * 3


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"bytes": None, "path": "gone.png"}, "gone.png cannot be read: No such file"),
        ({"bytes": None, "path": "."}, "Is a directory"),
        ({"bytes": None, "path": "data:image/png;base64," + "A" * 5000}, "File name too long"),
        ({"bytes": None, "path": "a\0b.png"}, "null byte"),
        ({"bytes": None, "path": None}, "neither bytes nor path"),
        ({"bytes": None, "path": ""}, "neither bytes nor path"),
        (None, "neither bytes nor path"),
        ({"bytes": b"", "path": None}, "no image format that PIL knows"),
        ({"bytes": b"\xff\xd8\xff nonsense", "path": None}, "no image format that PIL knows"),
        ({"bytes": encoded(picture(200, 200))[:2000], "path": None}, "is broken: "),
    ],
)
def test_a_missing_or_broken_image_is_refused_with_file_row_and_reason(tmp_path, entry, why):
    error = refusal(write(tmp_path / "a.parquet", [record(), {**record(), "images": [entry]}]))
    assert "a.parquet: row 1 (counted from 0)" in error.what and why in error.why


def test_row_numbers_go_on_past_a_batch_of_the_reader(tmp_path):
    rows = [record("x", [])] * 600 + [record("x", [], answer=None)]
    assert "row 600 " in refusal(write(tmp_path / "a.parquet", rows)).what
    ids = [row.id for row in read_rows([write(tmp_path / "b.parquet", rows[:600])])]
    assert ids == [f"b.parquet:{number}" for number in range(600)]


def test_ids_do_not_depend_on_where_the_folder_lies_and_tell_equal_names_apart(tmp_path):
    for folder in ("here", "there"):
        write(tmp_path / folder / "a" / "train.parquet", [record()])
        write(tmp_path / folder / "b" / "train.parquet", [record()])
    ids = [[row.id for row in read_rows([str(tmp_path / f / x / "train.parquet") for x in "ab"])] for f in ("here", "there")]
    assert ids[0] == ids[1] == ["a/train.parquet:0", "b/train.parquet:0"]


def test_a_file_listed_twice_under_two_names_is_refused(tmp_path):
    path = write(tmp_path / "a.parquet", [record()])
    (tmp_path / "link.parquet").symlink_to(path)
    assert "is listed twice" in refusal([path, str(tmp_path / "link.parquet")]).what


def test_files_that_are_no_data_are_refused(tmp_path):
    assert "does not exist" in refusal(str(tmp_path / "none.parquet")).what
    assert "is a folder" in refusal(str(tmp_path)).what
    (tmp_path / "empty.parquet").write_bytes(b"")
    assert refusal(str(tmp_path / "empty.parquet")).why == "it has no bytes"
    (tmp_path / "rows.csv").write_text("prompt,answer\nx,y\n")
    assert "is not a parquet file" in refusal(str(tmp_path / "rows.csv")).what
    assert refusal(write(tmp_path / "zero.parquet", [])).why == "it has 0 rows"


def test_a_damaged_file_is_refused_at_the_row_group_it_breaks_in(tmp_path):
    path = write(tmp_path / "a.parquet", [record()] * 40)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    assert "is not a parquet file" in refusal(str(cut)).what
    hurt = tmp_path / "hurt.parquet"
    shutil.copy(path, hurt)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    with hurt.open("r+b") as file:
        file.seek(column.dictionary_page_offset)
        file.write(b"\xff" * 16)
    error = refusal(str(hurt))
    assert error.what == f"data file {hurt} is damaged"


def test_text_that_is_not_utf8_is_refused(tmp_path):
    table = pa.Table.from_pylist([record("x", [])], schema=SCHEMA)
    broken = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    pq.write_table(table.set_column(0, "data_source", broken), tmp_path / "a.parquet")
    error = refusal(str(tmp_path / "a.parquet"))
    assert "is damaged" in error.what and "utf-8" in error.why


def test_rows_without_a_reference_response_are_refused_before_a_supervised_run(tmp_path):
    good, without = record(), record()
    without["extra_info"] = {"index": 1, "response": None}
    path = write(tmp_path / "a.parquet", [good, without])
    assert check_files([path]) == 2 and check_files([write(tmp_path / "b.parquet", [good])], supervised=True) == 1
    with pytest.raises(UserError, match=r"row a\.parquet:1 has no reference response"):
        check_files([path], supervised=True)
    del good["extra_info"]
    with pytest.raises(UserError, match="add column extra_info"):
        check_files([write(tmp_path / "c.parquet", [good], schema=None)], supervised=True)


def test_a_row_with_a_video_is_refused_and_an_empty_column_of_videos_is_not(tmp_path):
    without = record() | {"videos": []}
    path = write(tmp_path / "a.parquet", [without, record() | {"videos": [{"bytes": b"x"}]}], schema=None)
    assert "row 1" in refusal(path).what and refusal(path).why == "it has a video"
    assert check_files([write(tmp_path / "b.parquet", [without], schema=None)]) == 1


@pytest.mark.parametrize("token", ["<|video_pad|>", "<|image_pad|>", "<|im_end|>"])
def test_a_reference_response_that_spells_out_a_reserved_token_is_refused(tmp_path, token):
    bad = record()
    bad["extra_info"] = {"index": 0, "response": f"It is {token}7"}
    with pytest.raises(UserError, match=rf"row a\.parquet:0.*reserved token {re.escape(token)}"):
        check_files([write(tmp_path / "a.parquet", [bad])], supervised=True)
