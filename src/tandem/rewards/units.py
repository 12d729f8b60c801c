"""A number and what it counts: `12 cm^2`, `30°`, `50\\%`."""

import re
from typing import NamedTuple

_NAMES = {  # canonical: other spellings
    "deg": ["degrees", "degree", "degs"],
    "rad": ["radians", "radian"],
    "mm": ["millimeters", "millimeter", "millimetres", "millimetre"],
    "cm": ["centimeters", "centimeter", "centimetres", "centimetre"],
    "km": ["kilometers", "kilometer", "kilometres", "kilometre"],
    "m": ["meters", "meter", "metres", "metre"],
    "in": ["inches", "inch"],
    "ft": ["feet", "foot"],
    "yd": ["yards", "yard", "yds"],
    "mi": ["miles", "mile"],
    "unit": ["units"],
    "s": ["seconds", "second", "sec"],
    "min": ["minutes", "minute", "mins"],
    "h": ["hours", "hour", "hrs", "hr"],
    "kg": ["kilograms", "kilogram"],
    "g": ["grams", "gram"],
    "lb": ["pounds", "pound", "lbs"],
    "mph": [],
}
_CANONICAL = {spelling: name for name, others in _NAMES.items() for spelling in [name, *others]}
_WORDS = "|".join(sorted(_CANONICAL, key=len, reverse=True))
_POWER = r"(?:\s*\^\s*\{?\s*(?P<power>[23])\s*\}?)?"
_SQUARE = r"(?:(?P<square>sq\.?|square|cu\.?|cubic)\s*)?"
_UNIT = re.compile(rf"(?P<space>\s*){_SQUARE}(?P<name>{_WORDS})\.?{_POWER}$", re.IGNORECASE)
_DEGREE = re.compile(
    r"\s*(?:\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\circ|\\degree|\{?[\u00b0\u00ba]\}?)|\\(?:circ|degree)|[\u00b0\u00ba\u02da])\s*$"
)
_PERCENT = re.compile(r"\s*(?:\\?%|percent)\s*$", re.IGNORECASE)
_WRAPPED = re.compile(r"\\(?:text|mathrm|textrm|mbox|rm|operatorname)\s*\{([^{}]*)\}")


class Quantity(NamedTuple):
    text: str  # the number or expression alone
    unit: str  # canonical, "" without one; areas and volumes end in 2 and 3
    is_percent: bool


def split_unit(text: str) -> Quantity:
    """The value and the unit behind it. A unit needs a value before it; one letter (`5 m`) needs a space before it, or it is a variable."""
    if percent := _PERCENT.search(text):
        return Quantity(text[: percent.start()].strip(), "", True)
    if degree := _DEGREE.search(text):
        return Quantity(text[: degree.start()].strip(), "deg", False)
    unwrapped = _WRAPPED.sub(r" \1", text).strip()
    found = _UNIT.search(unwrapped)
    if not found:
        return Quantity(text, "", False)
    value, name = unwrapped[: found.start()].rstrip(), found["name"]
    glued = not found["space"] and not found["square"]
    if not value or (glued and (len(name) == 1 or value[-1].isalpha() or value[-1] == "\\")):
        return Quantity(text, "", False)
    square = (found["square"] or "").lower()
    power = found["power"] or ("2" if square.startswith("s") else "3" if square else "")
    return Quantity(value, _CANONICAL[name.lower()] + power, False)
