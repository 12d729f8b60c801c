"""Column types: what other writers produce is read, what cannot be read is refused by name before any row is touched."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandem.data.columns import check_schema
from tandem.data.rows import read_rows
from tandem.errors import UserError
from tests.data.files import SCHEMA, encoded, picture, record, write


def with_type(name: str, kind: pa.DataType) -> pa.Schema:
    return SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, kind))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("data_source", pa.large_string()),
        ("data_source", pa.string_view()),
        ("prompt", pa.large_list(pa.struct([("role", pa.large_string()), ("content", pa.string_view())]))),
        ("prompt", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string()), ("name", pa.string())]))),
        ("images", pa.large_list(pa.struct([("bytes", pa.large_binary()), ("path", pa.large_string())]))),
        ("images", pa.list_(pa.struct([("bytes", pa.binary_view())]))),
        ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.null())]))),
        ("reward_model", pa.struct([("ground_truth", pa.large_string())])),
        ("extra_info", pa.struct([("tags", pa.list_(pa.string()))])),
    ],
)
def test_types_of_other_writers_are_read_to_the_same_rows(tmp_path, name, kind):
    usual, other = tmp_path / "a" / "x.parquet", tmp_path / "b" / "x.parquet"
    rows = [{**record(), "extra_info": None}]
    [expected], [got] = read_rows([write(usual, rows)]), read_rows([write(other, rows, with_type(name, kind))])
    assert got == expected


@pytest.mark.parametrize("kind", [pa.null(), pa.list_(pa.null())])
def test_images_without_any_value_have_type_null(tmp_path, kind):
    rows = [{**record("x", []), "images": None}]
    assert read_rows([write(tmp_path / "a.parquet", rows, with_type("images", kind))])[0].images == []


@pytest.mark.parametrize("missing", ["data_source", "prompt", "reward_model"])
def test_a_missing_column_is_named_with_what_is_there(missing):
    with pytest.raises(UserError) as caught:
        check_schema(SCHEMA.remove(SCHEMA.get_field_index(missing)), "a.parquet")
    assert caught.value.what == f"a.parquet: column {missing!r} is missing"
    assert "ability" in caught.value.why and missing not in caught.value.why


def test_a_file_without_columns_is_refused():
    with pytest.raises(UserError, match="no columns"):
        check_schema(pa.schema([]), "a.parquet")


def test_only_columns_that_are_used_are_read():
    assert check_schema(SCHEMA, "a.parquet") == ["data_source", "prompt", "images", "reward_model", "extra_info"]
    published = pa.schema([("id", pa.int64()), ("answer", pa.string()), ("problem", pa.string())])
    assert check_schema(published, "a.parquet") == ["problem", "answer"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("data_source", pa.int64()),
        ("prompt", pa.string()),  # one question as plain text, or messages as JSON
        ("prompt", pa.list_(pa.string())),
        ("prompt", pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))),
        ("prompt", pa.struct([("role", pa.list_(pa.string())), ("content", pa.list_(pa.string()))])),
        ("images", pa.string()),
        ("images", pa.binary()),
        ("images", pa.list_(pa.binary())),
        ("images", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("images", pa.list_(pa.struct([("bytes", pa.string())]))),
        ("images", pa.list_(pa.struct([("url", pa.string())]))),
        ("reward_model", pa.string()),
        ("reward_model", pa.struct([("style", pa.string())])),
        ("reward_model", pa.struct([("ground_truth", pa.list_(pa.string()))])),
        ("reward_model", pa.struct([("ground_truth", pa.float32())])),  # 0.1 would read as 0.10000000149011612
        ("reward_model", pa.struct([("ground_truth", pa.bool_())])),
        ("extra_info", pa.string()),
    ],
)
def test_a_type_that_cannot_be_read_is_refused_by_name(name, kind):
    with pytest.raises(UserError) as caught:
        check_schema(with_type(name, kind), "a.parquet")
    assert caught.value.what == f"a.parquet: column {name!r} has type {kind}"


def test_messages_as_json_text_are_refused_not_read_as_one_character_each(tmp_path):
    row = {**record("x", []), "prompt": json.dumps([{"role": "user", "content": "x"}])}
    with pytest.raises(UserError, match="it must be list<struct<role: string, content: string>>"):
        read_rows([write(tmp_path / "a.parquet", [row], with_type("prompt", pa.string()))])


def test_types_that_pyarrow_guesses_are_read(tmp_path):
    rows = [record("<image>x"), record("<image>y", [encoded(picture(seed=1))])]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")  # guessed types: an all-None path becomes null
    assert pq.read_schema(tmp_path / "a.parquet").field("images").type.value_type.field("path").type == pa.null()
    assert [len(row.images) for row in read_rows([str(tmp_path / "a.parquet")])] == [1, 1]
