"""A text or a YAML node becomes a typed setting that remembers where it was written."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from tandem.config import yaml12
from tandem.config.keys import SETTINGS, allowed, is_list, is_text, nearest_key, section_of
from tandem.config.schema import Config, Section
from tandem.errors import UserError


@dataclass(frozen=True)
class Setting:
    value: Any
    origin: str  # "demo.yaml:12", "override `optimizer.lr=1e-4`": named when the value turns out to be wrong


Settings = dict[str, Setting]  # by dotted key


def read_text(key: str, text: str, origin: str) -> Settings:
    """One setting (or a section in YAML's flow style) given as text."""
    section, kind = lookup(key, origin)
    if kind is not None and is_text(kind.annotation):
        return {key: Setting(text, origin)}
    try:
        node = yaml12.compose(text) or yaml.ScalarNode("tag:yaml.org,2002:null", "")
    except yaml.YAMLError as error:
        raise UserError(
            f"cannot read the value of {key} ({origin})",
            f"`{text}` is not valid YAML: {in_short(error)}",
            "correct the value, or put it in quotes",
        ) from error
    if section:
        return dict(walk(node, section, f"{key}.", lambda _: origin))
    assert kind is not None
    return {key: Setting(_value(node, kind, key, origin), origin)}


def lookup(key: str, origin: str) -> tuple[type[Section] | None, FieldInfo | None]:
    """What a dotted key names: a section or a setting. Raises UserError when it names nothing."""
    if key in SETTINGS:
        return None, SETTINGS[key]
    section: type[Section] | None = Config
    for name in key.split("."):
        section = section_of(section.model_fields[name]) if section and name in section.model_fields else None
    if section is None:
        raise UserError(
            f"unknown key `{key}` ({origin})", "there is no such setting", f"did you mean `{nearest_key(key)}`? --dry-run lists every key"
        )
    return section, None


def walk(node: yaml.Node, section: type[Section], prefix: str, origin_of: Callable[[yaml.Node], str]) -> Iterator[tuple[str, Setting]]:
    """The settings below a mapping node."""
    if yaml12.is_null(node):
        return
    if not isinstance(node, yaml.MappingNode):
        name = prefix.rstrip(".") or "a recipe"
        keys = ", ".join(section.model_fields)
        raise UserError(f"{name} must hold keys and values ({origin_of(node)})", "it is a section, not a value", f"its keys are: {keys}")
    seen = set()
    for key_node, value in node.value:
        name, origin = str(key_node.value), origin_of(key_node)
        if name in seen:
            raise UserError(f"duplicate key `{prefix}{name}` ({origin})", "only one of the two values could count", "remove one of them")
        seen.add(name)
        inner, field = lookup(prefix + name, origin)
        if inner:
            yield from walk(value, inner, f"{prefix}{name}.", origin_of)
        else:
            assert field is not None
            yield prefix + name, Setting(_value(value, field, prefix + name, origin), origin)


def _value(node: yaml.Node, field: FieldInfo, key: str, origin: str) -> Any:
    """A scalar or a list of scalars; a text stays as written, a single value for a list becomes a list of one."""
    kind = field.annotation
    text = is_text(kind) or kind == list[str]
    if isinstance(node, yaml.ScalarNode):
        one = _scalar(node, text, key, origin)
        return [one] if is_list(kind) and one is not None else one
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [_scalar(item, text, key, origin) for item in node.value]
    raise bad_value(key, "a nested value", origin)


def _scalar(node: yaml.ScalarNode, text: bool, key: str, origin: str) -> Any:
    if text and (node.value == "" or not yaml12.is_null(node)):
        return node.value
    try:
        return yaml12.scalar(node)
    except (yaml.YAMLError, ValueError) as error:
        raise bad_value(key, node.value, origin) from error


def bad_value(key: str, value: Any, origin: str) -> UserError:
    field = SETTINGS[key]
    meaning = f" ({field.description})" if field.description else ""
    return UserError(
        f"{key} = {show(value)} is not allowed ({origin})",
        f"{key}{meaning} must be {allowed(field)}",
        f"give an allowed value; the default is {show(field.get_default(call_default_factory=True))}",
    )


def show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else repr(value)


def in_short(error: Exception) -> str:
    """A reading error on one line: PyYAML's own text shows the passage with a caret below."""
    mark = getattr(error, "problem_mark", None)
    return f"{getattr(error, 'problem', error)} at line {mark.line + 1}, column {mark.column + 1}" if mark else " ".join(str(error).split())
