"""YAML read by the 1.2 core schema: `1e-4` is a number, `yes`, `on`, `010`, `1:30` and dates are texts.

YAML 1.1, PyYAML's default, reads `1e-4` as a text and `1:30` as 90. Nodes are kept, so that every value knows its line.
"""

import re
from typing import Any, ClassVar

import yaml

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
_FLOAT = re.compile(r"[-+]?((\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$")
_BOOL = re.compile(r"(true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"(~|null|Null|NULL|)$")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # PyYAML's own attribute, filled below


for _tag, _pattern, _first in (
    ("null", _NULL, ["~", "n", "N", ""]),
    ("bool", _BOOL, list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _first)


def compose(text: str) -> yaml.Node | None:
    """The document's root node, None for an empty one. Raises yaml.YAMLError for text that is not one YAML document."""
    return yaml.compose(text, Loader=_Loader)


def is_null(node: yaml.Node) -> bool:
    return node.tag.endswith(":null")


def scalar(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """The typed value of a scalar node. Raises yaml.YAMLError for an explicit tag other than the core schema's."""
    return _Loader("").construct_object(node)
