"""A recipe file: settings, a part for each device that is laid over them, and the environment variables it listens to."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from tandem.config import yaml12
from tandem.config.keys import nearest
from tandem.config.schema import Config
from tandem.config.values import Settings, in_short, lookup, walk
from tandem.errors import UserError

RECIPES = Path(__file__).parent.parent / "recipes"
DEVICES = ("npu", "gpu", "cpu")


@dataclass(frozen=True)
class Layer:
    """One file."""

    settings: Settings
    devices: dict[str, Settings]  # device -> what holds there and wins over `settings`
    environment: dict[str, tuple[str, ...]]  # variable -> the keys it sets


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


def read_layers(path: Path, seen: tuple[Path, ...] = ()) -> list[Layer]:
    """The file and those it is based on, the furthest base first."""
    if path.resolve() in seen:
        raise UserError(f"{path} is its own base", "the `base` keys of these recipes form a circle", "remove one of the `base` keys")
    try:
        root = yaml12.compose(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"cannot read the recipe {path}", f"it is not valid YAML: {in_short(error)}", "correct the file") from error
    if root is None or yaml12.is_null(root):
        return []

    def origin_of(node: yaml.Node) -> str:
        return f"{path}:{node.start_mark.line + 1}"

    base = _take(root, "base", origin_of)
    devices = {name: part for name in DEVICES if (part := _take(root, name, origin_of))}
    environment = _take(root, "environment", origin_of)
    layer = Layer(
        dict(walk(root, Config, "", origin_of)),
        {name: dict(walk(part, Config, "", origin_of)) for name, part in devices.items()},
        _variables(environment, origin_of) if environment else {},
    )
    before = read_layers(find_recipe(str(base.value), path.parent), (*seen, path.resolve())) if base else []
    return [*before, layer]


def _take(root: yaml.Node, name: str, origin_of: Callable[[yaml.Node], str]) -> yaml.Node | None:
    """Remove a key that is no setting from a mapping and return its value, None when it is not there."""
    if not isinstance(root, yaml.MappingNode):
        return None
    found = [pair for pair in root.value if pair[0].value == name]
    if len(found) > 1:
        where = origin_of(found[1][0])
        raise UserError(f"duplicate key `{name}` ({where})", "only one of the two values could count", "remove one of them")
    root.value = [pair for pair in root.value if pair[0].value != name]
    return found[0][1] if found else None


def _variables(table: yaml.Node, origin_of: Callable[[yaml.Node], str]) -> dict[str, tuple[str, ...]]:
    """`environment`: NAME: key, or NAME: [key, key]. Raises UserError for a key that does not exist."""
    if not isinstance(table, yaml.MappingNode):
        raise UserError(
            f"environment must map variables to keys ({origin_of(table)})", "it is not a mapping", "write NAME: key on each line"
        )
    variables: dict[str, tuple[str, ...]] = {}
    for name, target in table.value:
        keys = tuple(str(node.value) for node in (target.value if isinstance(target, yaml.SequenceNode) else [target]))
        for key in keys:
            lookup(key, origin_of(name))
        variables[str(name.value)] = keys
    return variables
