"""A number and what it counts: `12 cm^2`, `30°`, `50\\%`."""

import re
from typing import NamedTuple

_NAMES = {  # canonical: other spellings
    "deg": ["degrees", "degree", "degs", "\u5ea6"],
    "rad": ["radians", "radian"],
    "mm": ["millimeters", "millimeter", "millimetres", "millimetre", "\u6beb\u7c73"],
    "cm": ["centimeters", "centimeter", "centimetres", "centimetre", "\u5398\u7c73"],
    "km": ["kilometers", "kilometer", "kilometres", "kilometre", "\u5343\u7c73", "\u516c\u91cc"],
    "m": ["meters", "meter", "metres", "metre", "\u7c73"],
    "in": ["inches", "inch"],
    "ft": ["feet", "foot"],
    "yd": ["yards", "yard", "yds"],
    "mi": ["miles", "mile"],
    "unit": ["units"],
    "s": ["seconds", "second", "sec", "\u79d2"],
    "min": ["minutes", "minute", "mins", "\u5206\u949f"],
    "h": ["hours", "hour", "hrs", "hr", "\u5c0f\u65f6"],
    "day": ["days", "\u5929"],
    "week": ["weeks"],
    "year": ["years", "\u5e74"],
    "kg": ["kilograms", "kilogram", "\u5343\u514b", "\u516c\u65a4"],
    "g": ["grams", "gram", "\u514b"],
    "lb": ["pounds", "pound", "lbs"],
    "mph": [],
    "dollar": ["dollars"],
    "cent": ["cents"],
    "yuan": ["\u5143"],
}
_CANONICAL = {spelling: name for name, others in _NAMES.items() for spelling in [name, *others]}
_WORDS = "|".join(sorted(_CANONICAL, key=len, reverse=True))
_POWER = r"(?:\s*\^\s*\{?\s*(?P<power>[23])\s*\}?)?"
_SQUARE = r"(?:(?P<square>sq\.?|square|cu\.?|cubic|\u5e73\u65b9|\u7acb\u65b9)\s*)?"
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
    """The value and the unit behind it. A unit needs a value before it; one Latin letter (`5 m`) a space, too, or it is a variable."""
    unwrapped = _WRAPPED.sub(r" \1", text).strip()
    if percent := _PERCENT.search(unwrapped):
        return Quantity(unwrapped[: percent.start()].strip(), "", True)
    if degree := _DEGREE.search(unwrapped):
        return Quantity(unwrapped[: degree.start()].strip(), "deg", False)
    found = _UNIT.search(unwrapped)
    if not found:
        return Quantity(text, "", False)
    value, name = unwrapped[: found.start()].rstrip(), found["name"]
    glued = not found["space"] and not found["square"]
    if not value or (glued and ((len(name) == 1 and name.isascii()) or value[-1].isalpha() or value[-1] == "\\")):
        return Quantity(text, "", False)
    square = (found["square"] or "").lower()
    power = found["power"] or ("2" if square.startswith(("s", "\u5e73")) else "3" if square else "")
    return Quantity(value, _CANONICAL[name.lower()] + power, False)
