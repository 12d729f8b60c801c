"""The dotted keys of the schema: which exist, what each accepts, and which one a misspelt key probably meant."""

import difflib
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from tandem.config.schema import Config, Section


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section behind a field, None for a plain setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _leaves(section: type[Section], prefix: str) -> dict[str, FieldInfo]:
    found: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        inner = section_of(field)
        found |= _leaves(inner, f"{prefix}{name}.") if inner else {prefix + name: field}
    return found


SETTINGS: dict[str, FieldInfo] = _leaves(Config, "")  # "optimizer.lr" -> its field


def is_text(kind: Any) -> bool:
    """Whether a setting of this type takes its text as written: `str`, or a choice between texts."""
    return kind is str or (get_origin(kind) is Literal and all(isinstance(choice, str) for choice in get_args(kind)))


def is_list(kind: Any) -> bool:
    return get_origin(kind) is list


def allowed(field: FieldInfo) -> str:
    """What a setting accepts, in words: "an integer >= 1", "one of grpo, rloo", "true or false"."""
    bounds = [f"{sign} {getattr(rule, name)}" for rule in field.metadata for name, sign in _SIGNS.items() if hasattr(rule, name)]
    return " ".join([_kind_in_words(field.annotation), " and ".join(bounds)]).strip()


_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_WORDS = {int: "an integer", float: "a finite number", bool: "true or false", str: "a text", type(None): "null"}


def _kind_in_words(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(choice or '""' for choice in inner)
    if get_origin(kind) is list:
        return f"a list, each {_kind_in_words(inner[0])}"
    if get_origin(kind) is tuple:
        return f"a list of {len(inner)}, each {_kind_in_words(inner[0])}"
    return " or ".join(_kind_in_words(choice) for choice in inner)


def nearest(word: str, options: list[str]) -> str:
    """The option most like `word`; of equals the first."""
    return max(options, key=lambda option: difflib.SequenceMatcher(None, word.lower(), option.lower()).ratio())


def nearest_key(key: str) -> str:
    """The setting a misspelt key probably meant; `lr`, `tp` and the like are found by their last part."""
    parts = [option for option in SETTINGS if option.rpartition(".")[2] == key.rpartition(".")[2]]
    return nearest(key, parts or list(SETTINGS))
