"""A recipe, the environment and `key=value` overrides become one `Config`; every value remembers where it was written.

Later ones win: the recipe's base, the recipe, in each of them the part of the chosen device, the recipe's own environment variables,
`TANDEM__SECTION__KEY` variables, overrides.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from tandem.config.checks import world_size
from tandem.config.recipe_file import DEVICES, Layer, find_recipe, read_layers
from tandem.config.reference_names import reference_value, translate
from tandem.config.schema import Config
from tandem.config.values import Setting, Settings, bad_value, read_text, show
from tandem.errors import UserError

ENV_PREFIX = "TANDEM__"
PATHS = ("run_dir", "model.path", "data.train_files", "data.val_files", "warm_start.val_files")


def load(
    recipe: str, overrides: Sequence[str] = (), env: Mapping[str, str] = os.environ, find_device: Callable[[], str] | None = None
) -> Config:
    """The configuration of a built-in recipe (`demo`) or a YAML file, with overrides such as `optimizer.lr=1e-4`.

    Args:
        find_device: looks for this machine's device; called only when the recipe has parts for devices and nothing names one.

    Raises:
        UserError: unknown recipe or key, duplicate key, malformed override, a value of the wrong type or range, or no device.
    """
    path = find_recipe(recipe)
    layers = read_layers(path)
    translated = translate(overrides)
    given = _from_environment(layers, env)
    for key, text, origin in translated.settings:
        given |= read_text(key, text, origin)
    settings = {"recipe": Setting(path.stem, str(path))}
    if any(layer.devices for layer in layers):
        given |= _device(layers, given, path.stem, find_device)
    for layer in layers:
        settings |= layer.settings
        if "device" in given:
            settings |= layer.devices.get(given["device"].value, {})
    settings |= given
    config = _build({key: _at_home(key, setting) for key, setting in settings.items()})
    for key, text, origin in translated.must_agree:
        _check_agreement(config, key, read_text(key, text, origin))
    return with_replicas(config)


def load_defaults(overrides: Sequence[str]) -> Config:
    """The schema's own values with overrides, of no recipe. Raises UserError as `load` does."""
    given: Settings = {}
    for key, text, origin in translate(overrides).settings:
        given |= read_text(key, text, origin)
    return _build({key: _at_home(key, setting) for key, setting in given.items()})


def _from_environment(layers: list[Layer], env: Mapping[str, str]) -> Settings:
    """What variables set: the recipe's own names, then `TANDEM__...`. A recipe's variable that is set to nothing counts as unset."""
    given: Settings = {}
    for name, keys in {name: keys for layer in layers for name, keys in layer.environment.items()}.items():
        for key in keys if env.get(name) else ():
            new = read_text(key, reference_value(key, env[name]), f"environment variable {name}")
            if key in given and given[key].value != new[key].value:
                raise UserError(
                    f"{given[key].origin} and {name} both set {key}", f"to {show(given[key].value)} and {show(new[key].value)}", "unset one"
                )
            given |= new
    for name, text in env.items():
        if name.startswith(ENV_PREFIX):
            given |= read_text(name.removeprefix(ENV_PREFIX).lower().replace("__", "."), text, f"environment variable {name}")
    return given


def _device(layers: list[Layer], given: Settings, recipe: str, find_device: Callable[[], str] | None) -> Settings:
    """The device whose part of the recipe holds."""
    chosen = {key: setting for layer in layers for key, setting in layer.settings.items() if key == "device"} | given
    if "device" in chosen and chosen["device"].value in DEVICES:
        return {"device": chosen["device"]}
    if "device" in chosen and chosen["device"].value != "auto":
        raise bad_value("device", chosen["device"].value, chosen["device"].origin)
    if find_device is None:
        raise UserError(f"recipe {recipe} has a part for each device", "no device is chosen", f"set device={'|'.join(DEVICES)}")
    return {"device": Setting(find_device(), "found on this machine")}


def _at_home(key: str, setting: Setting) -> Setting:
    """The setting with ~/ as the home folder, in keys that hold paths."""
    if key not in PATHS:
        return setting
    paths = setting.value if isinstance(setting.value, list) else [setting.value]
    paths = [os.path.expanduser(path) if isinstance(path, str) and path.startswith("~/") else path for path in paths]
    return Setting(paths if isinstance(setting.value, list) else paths[0], setting.origin)


def _check_agreement(config: Config, key: str, asked: Settings) -> None:
    """Raises UserError when a reference-style name asks for another value than the run has in the one setting for both."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    if asked[key].value != value:
        raise UserError(
            f"{asked[key].origin} asks for {show(asked[key].value)}, {key} is {show(value)}",
            f"{key} holds for every part of the run that has such a setting",
            f"leave it out, or set {key} to the value that all shall have",
        )


def with_replicas(config: Config) -> Config:
    """rollout.replicas = 0 becomes the number of generators that share all of the trainer's devices."""
    rollout = config.rollout
    if rollout.replicas or rollout.placement != "colocated":
        return config
    replicas = max(1, world_size(config) // rollout.tp)
    return config.model_copy(update={"rollout": rollout.model_copy(update={"replicas": replicas})})


def resolved_yaml(config: Config | dict[str, Any]) -> str:
    """Every setting as YAML; `load` of a file with this text gives an equal configuration. Args: config: or the same dumped as JSON."""
    settings = config.model_dump(mode="json") if isinstance(config, Config) else config
    text: str = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    # PyYAML writes these as they are and reads them as the end of a line
    return yaml.safe_dump(settings, sort_keys=False) if set(text) & set("\x85\u2028\u2029") else text


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
        raise bad_value(key, settings[key].value, settings[key].origin) from error
