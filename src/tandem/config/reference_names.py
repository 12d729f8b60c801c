"""`key=value` arguments, ours or in the style of verl's launch scripts, become ours."""

from collections.abc import Sequence
from typing import NamedTuple

from tandem.config.keys import nearest
from tandem.config.reference_table import ALWAYS, FOLLOWS, NO_COUNTERPART, RENAMED, SAME, SWITCHES, VALUES, Switch
from tandem.errors import UserError

STYLE = ("actor_rollout_ref.",)  # no key of ours starts so
_RESUME_MODE, _RESUME_PATH = "trainer.resume_mode", "trainer.resume_from_path"


class Given(NamedTuple):
    key: str  # ours
    text: str
    origin: str


class Translated(NamedTuple):
    settings: list[Given]  # later ones win
    must_agree: list[Given]  # what the run's settings must be in the end


def reference_value(key: str, text: str) -> str:
    """A value as verl writes it, in our words: `low_var_kl` for algorithm.kl.kind is k3. Other texts stay as they are."""
    return VALUES.get(key, {}).get(text, text)


def translate(overrides: Sequence[str]) -> Translated:
    """Raises UserError for an argument that is not key=value, a name with no counterpart here, or two names that contradict each other."""
    settings: dict[str, Given] = {}  # by our key
    names: dict[str, str] = {}  # our key -> the reference name that set it
    switches: list[tuple[Switch, Given]] = []
    must_agree: list[Given] = []
    for override in overrides:
        name, text = _split(override)
        origin = f"override `{override}`"
        if name == _RESUME_MODE and _unquoted(text) == "resume_path":
            _check_named_checkpoint(overrides, origin)  # the other name says all
        elif name in SWITCHES:
            switches.append((SWITCHES[name], Given(name, _unquoted(text), origin)))
        elif name in FOLLOWS:
            must_agree.append(Given(FOLLOWS[name], reference_value(FOLLOWS[name], _unquoted(text)), origin))
        elif name in ALWAYS:
            _check_always(name, text, origin)
        elif name in RENAMED:
            for key in RENAMED[name]:
                new = Given(key, reference_value(key, _unquoted(text)), origin)
                if names.get(key, name) != name and settings[key].text != new.text:
                    raise _contradiction(settings[key], new)
                names[key] = name
                _put(settings, new)
        else:
            _check_counterpart(name, origin)
            _put(settings, Given(name, reference_value(name, _unquoted(text) if name in SAME else text), origin))
    for switch, flag in switches:
        _turn(switch, flag, settings)
    return Translated(list(settings.values()), must_agree)


def _split(override: str) -> tuple[str, str]:
    name, separator, text = override.partition("=")
    name = name.removeprefix("+").removeprefix("+")  # Hydra's marks for a name that is not in its files
    if not separator or not name or name != name.strip():
        raise UserError(
            f"`{override}` is not an override", "an override is key=value, without spaces around `=`", "for example optimizer.lr=1e-4"
        )
    return name, text


def _put(settings: dict[str, Given], new: Given) -> None:
    settings.pop(new.key, None)  # so that the last one given stands last
    settings[new.key] = new


def _turn(switch: Switch, flag: Given, settings: dict[str, Given]) -> None:
    wanted = flag.text.lower()
    if wanted not in ("true", "false"):
        raise UserError(f"{flag.key} = {flag.text} is not allowed ({flag.origin})", "it is True or False", f"or set {switch.key}")
    if (wanted == "true") == switch.zero_when:
        _put(settings, Given(switch.key, "0", flag.origin))
    elif switch.key not in settings:
        _put(settings, Given(switch.key, switch.otherwise, flag.origin))


def _check_always(name: str, text: str, origin: str) -> None:
    values, why = ALWAYS[name]
    if _unquoted(text).lower().replace(" ", "") not in values:
        raise UserError(f"{name} can only be {values[0]} here ({origin})", why, "leave it out")


def _check_named_checkpoint(overrides: Sequence[str], origin: str) -> None:
    if not any(_split(override)[0] == _RESUME_PATH for override in overrides):
        raise UserError(f"{origin} names no checkpoint", f"it goes with {_RESUME_PATH}", "set resume=FOLDER instead, or resume=auto")


def _check_counterpart(name: str, origin: str) -> None:
    """Raises UserError for a name of verl's that means nothing here."""
    prefixes = sorted((known for known in NO_COUNTERPART if name == known or (name.startswith(known) and known[-1] in "._")), key=len)
    if prefixes:
        raise UserError(f"{name} has no counterpart here ({origin})", NO_COUNTERPART[prefixes[-1]], "leave it out")
    if name.startswith(STYLE):
        near = nearest(name, [*RENAMED, *SWITCHES])
        ours = ", ".join(RENAMED[near] if near in RENAMED else (SWITCHES[near].key,))
        raise UserError(
            f"{name} has no counterpart here ({origin})",
            "it is not a name of the launch scripts that are understood",
            f"did you mean {near}, which is {ours} here? Else leave it out",
        )


def _contradiction(before: Given, new: Given) -> UserError:
    return UserError(
        f"{before.origin} and {new.origin} contradict each other",
        f"both are {new.key} here, which has one value",
        f"leave both out and set {new.key}",
    )


def _unquoted(text: str) -> str:
    """Without the quotes that Hydra takes off."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
