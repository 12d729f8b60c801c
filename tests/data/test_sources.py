"""Files of several kinds and layouts become the same rows; bad ones are told, or left out and counted."""

import base64
import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from tandem.config.schema import ColumnsConfig, DataConfig
from tandem.data.bad_rows import BadRow, BadRows
from tandem.data.layouts import INSTRUCTION
from tandem.data.rows import check_files, read_rows
from tandem.errors import UserError
from tests.data.files import encoded, picture, record, write

SKIP = DataConfig(on_bad_row="skip")


def json_lines(path, records) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in records))
    return str(path)


def contents(rows) -> list:
    return [(row.messages, row.images, row.ground_truth, row.data_source) for row in rows]


def test_json_lines_and_arrow_read_like_parquet(tmp_path):
    image = encoded(picture())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.png").write_bytes(image)
    expected = read_rows([write(tmp_path / "a.parquet", [record(images=[image]), record("Text?", [])])])
    first = record(images=[]) | {"images": [{"bytes": base64.b64encode(image).decode()}]}
    by_path = record(images=[]) | {"images": ["a.png"]}
    lines = json_lines(tmp_path / "b" / "a.jsonl", [first, "", record("Text?", [])])
    assert contents(read_rows([lines])) == contents(expected)
    assert contents(read_rows([json_lines(tmp_path / "b" / "c.jsonl", [by_path])])) == contents(expected[:1])
    table = pa.Table.from_pylist([record(images=[image]), record("Text?", [])])
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ("stream.arrow", "file.arrow"):
        assert contents(read_rows([str(tmp_path / name)])) == contents(expected)


def test_a_folder_is_its_files_in_order_and_files_of_several_kinds_mix(tmp_path):
    write(tmp_path / "data" / "b.parquet", [record("second", [])])
    json_lines(tmp_path / "data" / "a.jsonl", [record("first", [])])
    (tmp_path / "data" / "dataset_info.json").write_text("{}")
    rows = read_rows([str(tmp_path / "data"), write(tmp_path / "c.parquet", [record("third", [])])])
    assert [(row.id, row.messages[-1]["content"]) for row in rows] == [
        ("a.jsonl:0", "first"), ("b.parquet:0", "second"), ("c.parquet:0", "third")
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("columns", "source", "question", "truth"),
    [
        ({"question": "2 + 3?", "answer": "It is 2+3.\n#### 1,005"}, "openai/gsm8k", "2 + 3?", "1,005"),
        (
            {"problem": "Find x.", "solution": "so \\boxed{1} and \\boxed{\\frac{1}{2}}.", "level": "Level 3", "type": "Algebra"},
            "math",
            "Find x.",
            "\\frac{1}{2}",
        ),
        ({"problem": "Find x.", "solution": "long", "answer": "7", "unique_id": "x"}, "math", "Find x.", "7"),
    ],
    ids=["gsm8k", "math", "math-500"],
)
def test_published_layouts_are_known_by_their_columns(tmp_path, kind, columns, source, question, truth):
    path = write(tmp_path / "a.parquet", [columns], schema=None) if kind == "parquet" else json_lines(tmp_path / "a.jsonl", [columns])
    [row] = read_rows([path])
    assert (row.data_source, row.messages, row.ground_truth) == (source, [{"role": "user", "content": f"{question} {INSTRUCTION}"}], truth)


def test_a_published_row_whose_solution_has_no_answer_is_told(tmp_path):
    with pytest.raises(BadRow, match=r"row 1 .*\n.*answer is null"):
        read_rows([json_lines(tmp_path / "a.jsonl", [{"question": "?", "answer": "#### 1"}, {"question": "?", "answer": "one"}])])


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_columns_of_any_name(tmp_path, kind):
    columns = ColumnsConfig(prompt="ask", answer="gold", images="pic", source="set", response="why")
    data = DataConfig(columns=columns, instruction="Box it.", source="mine", system_prompt="Be brief.")
    image = encoded(picture())
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "2+2?"}]
    if kind == "parquet":
        one = write(
            tmp_path / "a.parquet", [{"ask": "What?", "gold": 7, "pic": {"bytes": image, "path": None}, "set": "a", "why": "so"}], None
        )
        two = write(tmp_path / "b.parquet", [{"ask": chat, "gold": "4", "pic": None, "set": None, "why": None}], None)
    else:
        pic = {"bytes": base64.b64encode(image).decode()}
        one = json_lines(tmp_path / "a.jsonl", [{"ask": "What?", "gold": 7, "pic": pic, "set": "a", "why": "so"}])
        two = json_lines(tmp_path / "b.jsonl", [{"ask": chat, "gold": "4"}])
    first, second = read_rows([one, two], data)
    system = {"role": "system", "content": "Be brief."}
    assert first.messages == [system, {"role": "user", "content": "<image>What? Box it."}]
    assert (first.images, first.ground_truth, first.data_source, first.extra_info["response"]) == ([image], "7", "a", "so")
    assert [m["content"] for m in second.messages] == ["Be brief.", "Hi", "Yes?", "2+2? Box it."]
    assert (second.images, second.ground_truth, second.data_source) == ([], "4", "mine")


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path):
    data = DataConfig(columns=ColumnsConfig(prompt="ask", answer="gold"))
    for path in (write(tmp_path / "a.parquet", [{"ask": "?", "answer": "7"}], None), json_lines(tmp_path / "a.jsonl", [{"ask": "?"}])):
        with pytest.raises(UserError, match="gold"):
            read_rows([path], data)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"q": 7, "a": "7"}, "its prompt is 7"),
        ({"q": ["x", "y"], "a": "7"}, "its prompt is ['x', 'y']"),
        ({"q": "x", "a": ["7", "8"]}, "its reference answer is ['7', '8']"),
        ({"q": "x", "a": "7", "s": 3}, "its data_source is 3"),
        ({"q": "x", "a": "7", "im": "gone.png"}, "gone.png cannot be read"),
        ({"q": "x", "a": "7", "im": ["gone.png"]}, "gone.png cannot be read"),
    ],
)
def test_columns_that_a_user_names_are_looked_at_in_parquet_too(tmp_path, row, why):
    data = DataConfig(
        columns=ColumnsConfig(prompt="q", answer="a", **{"source": "s"} if "s" in row else {}, **{"images": "im"} if "im" in row else {})
    )
    for path in (write(tmp_path / "a.parquet", [row], None), json_lines(tmp_path / "a.jsonl", [row])):
        with pytest.raises(BadRow) as caught:
            read_rows([path], data)
        assert why in caught.value.why and "row 0" in caught.value.what


def test_images_of_a_user_s_column_may_be_paths(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(picture()))
    data = DataConfig(columns=ColumnsConfig(prompt="q", answer="a", images="im"))
    for path in (
        write(tmp_path / "a.parquet", [{"q": "x", "a": "7", "im": "a.png"}], None),
        json_lines(tmp_path / "a.jsonl", [{"q": "x", "a": "7", "im": ["a.png"]}]),
    ):
        assert read_rows([path], data)[0].images == [encoded(picture())]


def test_a_reference_response_that_is_no_text_is_told(tmp_path):
    data = DataConfig(columns=ColumnsConfig(prompt="q", answer="a", response="r"))
    with pytest.raises(UserError, match="no reference response"):
        check_files([write(tmp_path / "a.parquet", [{"q": "x", "a": "7", "r": 5}], None)], True, data)


def test_the_folder_of_several_splits_is_no_folder_of_rows(tmp_path):
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UserError, match="without data files"):
        read_rows([str(tmp_path)])


def test_a_row_s_own_system_message_stays(tmp_path):
    row = record("x", [])
    row["prompt"].insert(0, {"role": "system", "content": "Mine."})
    [read] = read_rows([write(tmp_path / "a.parquet", [row])], DataConfig(system_prompt="Ours."))
    assert [m["content"] for m in read.messages] == ["Mine.", "x"]


BAD = {  # kind -> a row of JSON lines, and a part of the reason
    "json": ('{"prompt": ', "its line is no JSON object"),
    "type": (record("x", []) | {"prompt": 7}, "its prompt is 7"),
    "prompt": (record("x", []) | {"prompt": []}, "the prompt is empty"),
    "answer": (record("x", [], answer=None), "answer is null or empty"),
    "marks": (
        record("<image><image>", []) | {"images": [{"bytes": base64.b64encode(encoded(picture())).decode()}]},
        "2 <image> marks for 1",
    ),
    "image": (record("<image>", []) | {"images": ["gone.png"]}, "gone.png cannot be read"),
    "video": (record("x", []) | {"videos": ["v.mp4"]}, "it has a video"),
    "text": (json.dumps(record("x", [], answer="\ud800")), "one half of a surrogate pair"),
    "json: nested": ('{"prompt": ' + "[" * 100_000, "its line is no JSON object"),
    "marks: no column": ({key: value for key, value in record("<image>", []).items() if key != "images"}, "column 'images' is missing"),
    "prompt: blank": (record(" ", []), "no text"),
}


@pytest.mark.parametrize("case", BAD)
def test_each_kind_of_bad_row_ends_in_one_message_or_is_left_out_and_counted(tmp_path, case):
    (line, why), kind = BAD[case], case.partition(":")[0]
    path = json_lines(tmp_path / "a.jsonl", [record("good", []), line, record("also good", [])])
    with pytest.raises(BadRow) as caught:
        read_rows([path])
    assert caught.value.what == f"{path}: row 1 (counted from 0) cannot be used" and why in caught.value.why
    assert pickle.loads(pickle.dumps(caught.value)).kind == kind, "it crosses processes whole"
    bad = BadRows(skip=True)
    assert [row.id for row in read_rows([path], SKIP, bad)] == ["a.jsonl:0", "a.jsonl:2"], "other rows keep their numbers"
    assert dict(bad.counts) == {kind: 1} and check_files([path], data=SKIP) == 2
    assert bad.summary == f"1 bad row left out ({kind} 1); the log says why"


def test_a_mark_of_the_encoding_before_the_first_line_is_no_bad_row(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", [record("x", [])])
    Path(path).write_bytes(b"\xef\xbb\xbf" + Path(path).read_bytes())
    assert [row.messages[-1]["content"] for row in read_rows([path])] == ["x"]


def test_a_file_of_empty_lines_says_that_it_holds_no_row(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n")
    with pytest.raises(UserError, match=r"a\.jsonl holds none"):
        read_rows([str(path)])


def test_when_every_row_is_bad_it_is_an_error_even_so(tmp_path):
    with pytest.raises(UserError, match="no row is left"):
        check_files([json_lines(tmp_path / "a.jsonl", ["[]", "7"])], data=SKIP)


def test_a_data_set_of_the_hub_is_read_by_its_split(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("tandem.data.hub.fetch", lambda name, kind, patterns: asked.append((name, kind)) or tmp_path)
    for number in (1, 0):
        write(tmp_path / "data" / f"train-0000{number}-of-00002.parquet", [record("ab"[number], [])])
    assert [row.messages[-1]["content"] for row in read_rows(["hf://me/sums"])] == ["a", "b"]
    assert asked == [("me/sums", "dataset")]
    with pytest.raises(UserError, match="no files of split test"):
        read_rows(["hf://me/sums:test"])
