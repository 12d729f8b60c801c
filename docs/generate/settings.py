"""The table of all settings, from `config/schema.py`."""

from pydantic.fields import FieldInfo

from docs.generate.messages import cell
from tandem.config.keys import allowed, section_of
from tandem.config.schema import Config, Section
from tandem.config.values import show


def tables() -> str:
    """A section of the schema a table; the settings outside sections first."""
    top = {name: field for name, field in Config.model_fields.items() if not section_of(field)}
    parts = [_table("The run", "", top)]
    for name, field in Config.model_fields.items():
        if section := section_of(field):
            parts += _section(name, section)
    return "\n\n".join(parts) + "\n"


def _section(prefix: str, section: type[Section]) -> list[str]:
    plain = {name: field for name, field in section.model_fields.items() if not section_of(field)}
    about = "" if section.__doc__ is None or section.__doc__ == Section.__doc__ else section.__doc__.strip()
    parts = [_table(prefix, prefix + ".", plain, about)]
    for name, field in section.model_fields.items():
        if inner := section_of(field):
            parts += _section(f"{prefix}.{name}", inner)
    return parts


def _table(title: str, prefix: str, fields: dict[str, FieldInfo], about: str = "") -> str:
    heading = f"## {title}" if not prefix else f"## `{title}`"
    lines = [heading, "", *([about, ""] if about else []), "| setting | default | may be | |", "|---|---|---|---|"]
    for name, field in fields.items():
        default = show(field.get_default(call_default_factory=True))
        lines.append(f"| `{prefix}{name}` | `{default}` | {cell(allowed(field))} | {cell(field.description or '')} |")
    return "\n".join(lines)
