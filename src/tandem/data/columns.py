"""The columns of a file in Geo3K's layout, and the check that a parquet file has them."""

import pyarrow as pa

from tandem.config.schema import DataConfig
from tandem.data.layouts import Layout, layout_of
from tandem.errors import UserError

IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
REWARD_MODEL = pa.struct([("style", pa.string()), ("ground_truth", pa.string())])


def written_schema(*extra: tuple[str, pa.DataType]) -> pa.Schema:
    """Columns of a file that Tandem writes; `extra`: what `extra_info` holds beside split, index, answer and question."""
    known = [("split", pa.string()), ("index", pa.int64()), ("answer", pa.string()), ("question", pa.string())]
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", MESSAGES),
            ("images", IMAGES),
            ("ability", pa.string()),
            ("reward_model", REWARD_MODEL),
            ("extra_info", pa.struct([*known, *extra])),
        ]
    )


EXPECTED = {  # column -> the type a message shows
    "data_source": "string",
    "prompt": "list<struct<role: string, content: string>>",
    "images": "list<struct<bytes: binary, path: string>>",
    "reward_model": "struct<style: string, ground_truth: string>",
    "extra_info": "struct<...>",
}
MEANINGS = {"problem": "string", "question": "string", "solution": "string", "answer": "string"}  # of published data sets


def check_schema(schema: pa.Schema, path: str, layout: Layout | None = None) -> list[str]:
    """The columns to read of a file of this layout (None: that which its columns say).

    Raises:
        UserError: `schema` lacks a needed one (nothing is read from ability, and a text-only file has no images), or one has a type that
            cannot be read.
    """
    layout = layout or layout_of(schema.names, DataConfig())
    fits = FITS if layout.name != "data.columns" else dict.fromkeys(layout.read, _fits_mapped)
    for name in layout.read:
        expected = (EXPECTED | MEANINGS).get(name, "string")
        if name not in schema.names:
            if name in layout.needed or layout.name == "data.columns":
                raise UserError(
                    f"{path}: column {name!r} is missing",
                    f"the file has only {', '.join(schema.names) or 'no columns'}",
                    f"write the file in Geo3K's layout, with {name}: {expected}; or name its own columns: data.columns.prompt, .answer",
                )
        elif name in fits and not fits[name](schema.field(name).type):
            mapped = "text, a number, messages or images, as it is used"
            raise UserError(
                f"{path}: column {name!r} has type {schema.field(name).type}",
                f"it must be {mapped if layout.name == 'data.columns' else expected}",
                "write the column again with that type (an explicit pyarrow schema keeps it)",
            )
    return [name for name in layout.read if name in schema.names]


def _is_string(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_answer(kind: pa.DataType) -> bool:
    return _is_string(kind) or pa.types.is_integer(kind) or pa.types.is_float64(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _is_list_of_structs(kind: pa.DataType) -> bool:
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type)


def _fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}


def _fits_messages(kind: pa.DataType) -> bool:
    if not _is_list_of_structs(kind):
        return False
    fields = _fields(kind.value_type)
    return all(name in fields and _is_string(fields[name]) for name in ("role", "content"))


def _fits_images(kind: pa.DataType) -> bool:
    """A field without any value has type null: a file of text rows, or one where no image has a path."""
    if pa.types.is_null(kind):
        return True
    if not _is_list_of_structs(kind):
        return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_null(kind.value_type)
    fields = _fields(kind.value_type)
    of_bytes, of_path = fields.get("bytes", pa.null()), fields.get("path", pa.null())
    is_empty = pa.types.is_null(of_bytes) and pa.types.is_null(of_path)
    return not is_empty and (pa.types.is_null(of_bytes) or _is_binary(of_bytes)) and (pa.types.is_null(of_path) or _is_string(of_path))


def _fits_reward(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and _is_answer(_fields(kind).get("ground_truth", pa.null()))


def _fits_extra(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) or pa.types.is_null(kind)


def _fits_mapped(kind: pa.DataType) -> bool:
    """A user's column: text or a number, messages, images, or one image alone."""
    one_image = pa.types.is_struct(kind) and _fits_images(pa.list_(kind))
    return _is_answer(kind) or _fits_messages(kind) or _fits_images(kind) or one_image or _is_string(getattr(kind, "value_type", pa.null()))


FITS = {
    "data_source": _is_string,
    "prompt": _fits_messages,
    "images": _fits_images,
    "reward_model": _fits_reward,
    "extra_info": _fits_extra,
    "problem": _is_string,
    "question": _is_string,
    "solution": _is_string,
    "answer": _is_answer,
}
