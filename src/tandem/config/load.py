"""A recipe, the environment and `key=value` overrides become one `Config`; every value remembers where it was written.

Later ones win: the recipe's base, the recipe, `TANDEM__SECTION__KEY` variables, overrides.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from tandem.config import yaml12
from tandem.config.keys import SETTINGS, allowed, is_list, is_text, nearest, nearest_key, section_of
from tandem.config.schema import Config, Section
from tandem.errors import UserError

ENV_PREFIX = "TANDEM__"
RECIPES = Path(__file__).parent.parent / "recipes"


@dataclass(frozen=True)
class Setting:
    value: Any
    origin: str  # "demo.yaml:12", "override `optimizer.lr=1e-4`": named when the value turns out to be wrong


Settings = dict[str, Setting]  # by dotted key


def load(recipe: str, overrides: Sequence[str] = (), env: Mapping[str, str] = os.environ) -> Config:
    """The configuration of a built-in recipe (`demo`) or a YAML file, with overrides such as `optimizer.lr=1e-4`.

    Raises:
        UserError: unknown recipe or key, duplicate key, malformed override, or a value of the wrong type or range.
    """
    path = find_recipe(recipe)
    settings = {"recipe": Setting(path.stem, str(path))} | _read_file(path, seen=())
    for name, text in env.items():
        if name.startswith(ENV_PREFIX):
            key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            settings |= _read_text(key, text, f"environment variable {name}")
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key or key != key.strip():
            raise UserError(
                f"`{override}` is not an override", "an override is key=value, without spaces around `=`", "for example optimizer.lr=1e-4"
            )
        settings |= _read_text(key, text, f"override `{override}`")
    return _build(settings)


def resolved_yaml(config: Config) -> str:
    """Every setting as YAML; `load` of a file with this text gives an equal configuration."""
    settings = config.model_dump(mode="json")
    text: str = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    # PyYAML writes these as they are and reads them as the end of a line
    return yaml.safe_dump(settings, sort_keys=False) if set(text) & set("\x85\u2028\u2029") else text


def builtin_recipes() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_recipe(recipe: str, beside: Path = Path()) -> Path:
    """The file of a built-in recipe or, relative to `beside`, of a path. Raises UserError when there is neither."""
    if recipe in builtin_recipes():
        return RECIPES / f"{recipe}.yaml"
    path = beside / Path(recipe).expanduser()
    if path.is_file():
        return path
    names = builtin_recipes()
    raise UserError(
        f"no recipe `{recipe}`",
        f"it is neither a YAML file nor one of the built-in recipes: {', '.join(names)}",
        f"did you mean `{nearest(recipe, names)}`? Give a built-in name or the path of a YAML file",
    )


def _read_file(path: Path, seen: tuple[Path, ...]) -> Settings:
    """The settings of a recipe file over those of its `base`."""
    if path.resolve() in seen:
        raise UserError(f"{path} is its own base", "the `base` keys of these recipes form a circle", "remove one of the `base` keys")
    try:
        root = yaml12.compose(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"cannot read the recipe {path}", f"it is not valid YAML: {_in_short(error)}", "correct the file") from error
    if root is None or yaml12.is_null(root):
        return {}
    settings = dict(_walk(root, Config, "", lambda node: f"{path}:{node.start_mark.line + 1}", top=True))
    base = settings.pop("base", None)
    return _read_file(find_recipe(str(base.value), path.parent), (*seen, path.resolve())) | settings if base else settings


def _read_text(key: str, text: str, origin: str) -> Settings:
    """One setting (or a section in YAML's flow style) given as text."""
    section, kind = _lookup(key, origin)
    if kind is not None and is_text(kind.annotation):
        return {key: Setting(text, origin)}
    try:
        node = yaml12.compose(text) or yaml.ScalarNode("tag:yaml.org,2002:null", "")
    except yaml.YAMLError as error:
        raise UserError(
            f"cannot read the value of {key} ({origin})",
            f"`{text}` is not valid YAML: {_in_short(error)}",
            "correct the value, or put it in quotes",
        ) from error
    if section:
        return dict(_walk(node, section, f"{key}.", lambda _: origin))
    assert kind is not None
    return {key: Setting(_value(node, kind, key, origin), origin)}


def _lookup(key: str, origin: str) -> tuple[type[Section] | None, FieldInfo | None]:
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


def _walk(
    node: yaml.Node, section: type[Section], prefix: str, origin_of: Callable[[yaml.Node], str], top: bool = False
) -> Iterator[tuple[str, Setting]]:
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
        if top and name == "base":
            yield "base", Setting(value.value, origin)
            continue
        inner, field = _lookup(prefix + name, origin)
        if inner:
            yield from _walk(value, inner, f"{prefix}{name}.", origin_of)
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
    raise _bad_value(key, "a nested value", origin)


def _scalar(node: yaml.ScalarNode, text: bool, key: str, origin: str) -> Any:
    if text and (node.value == "" or not yaml12.is_null(node)):
        return node.value
    try:
        return yaml12.scalar(node)
    except (yaml.YAMLError, ValueError) as error:
        raise _bad_value(key, node.value, origin) from error


def _build(settings: Settings) -> Config:
    tree: dict[str, Any] = {}
    for key, setting in settings.items():
        *sections, name = key.split(".")
        branch = tree
        for part in sections:
            branch = branch.setdefault(part, {})
        branch[name] = setting.value
    try:
        return Config.model_validate_json(json.dumps(tree), strict=True)  # strict JSON: lists for tuples, but no text for a number
    except ValidationError as error:
        parts = [part for part in error.errors()[0]["loc"] if isinstance(part, str)]
        key = next(key for end in range(len(parts), 0, -1) if (key := ".".join(parts[:end])) in settings)
        raise _bad_value(key, settings[key].value, settings[key].origin) from error


def _bad_value(key: str, value: Any, origin: str) -> UserError:
    field = SETTINGS[key]
    meaning = f" ({field.description})" if field.description else ""
    return UserError(
        f"{key} = {_show(value)} is not allowed ({origin})",
        f"{key}{meaning} must be {allowed(field)}",
        f"give an allowed value; the default is {_show(field.get_default(call_default_factory=True))}",
    )


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else repr(value)


def _in_short(error: Exception) -> str:
    """A reading error on one line: PyYAML's own text shows the passage with a caret below."""
    mark = getattr(error, "problem_mark", None)
    return f"{getattr(error, 'problem', error)} at line {mark.line + 1}, column {mark.column + 1}" if mark else " ".join(str(error).split())
