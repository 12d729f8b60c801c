"""Versions against a stack: each package, pairs that must agree, and whether what is installed is what Python would import."""

from collections.abc import Callable

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from tandem.doctor.finding import Finding
from tandem.doctor.stacks import OPTIONAL, PAIRS, ROWS, Row, StackName
from tandem.doctor.versions import ABSENT, installed_version, source_tree

Lookup = Callable[[str], str | None]


def package_findings(device: str, stack: StackName, version: Lookup) -> list[Finding]:
    """Args: version: of a component, None when it is absent."""
    found = [of_stack(row, stack, version(row.component)) for row in ROWS if device in row.devices]
    found += [pair for pair in (agreement(*pair, version) for pair in PAIRS if device in pair[2]) if pair]
    return found + [Finding(name, got, "optional", "ok", why) for name, why in OPTIONAL.items() if (got := version(name))]


def of_stack(row: Row, stack: StackName, found: str | None) -> Finding:
    """One row of the table; a version of the other stack is told as such."""
    wanted, other = (row.guide, row.later) if stack == "guide" else (row.later, row.guide)
    told = f"{row.component}{wanted}" if wanted else "any"
    if found is None:
        return Finding(row.component, ABSENT, told, "fault", row.why, _install(row, wanted))
    if not wanted or matches(found, wanted):
        return Finding(row.component, found, told)
    why = row.why
    if other != wanted and other and matches(found, other):
        why = f"it belongs to the stack `{'later' if stack == 'guide' else 'guide'}`, Megatron-Core to `{stack}`: {row.why}"
    return Finding(row.component, found, told, "fault", why, _install(row, wanted))


def matches(found: str, specifier: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(found), prereleases=True)
    except InvalidVersion:  # a source tree that does not say
        return False


def agreement(first: str, second: str, devices: tuple[str, ...], why: str, version: Lookup) -> Finding | None:
    """A fault when the first two numbers differ; nothing when they agree, or one is absent and told so elsewhere."""
    one, other = version(first), version(second)
    if not one or not other or one.split(".")[:2] == other.split(".")[:2]:
        return None
    return Finding(
        f"{first}, {second}", f"{one}, {other}", "the same first two numbers", "fault", why, f"install the {second} made for {first} {one}"
    )


def trees() -> list[Finding]:
    """Source trees that hide an installed package of another version."""
    found = []
    for name in ("megatron-core", "mindspeed"):
        tree, installed = source_tree(name), installed_version(name)
        if tree and installed:
            found.append(
                Finding(
                    f"{name}, twice",
                    f"{tree} and {installed} installed",
                    "one",
                    "fault",
                    "Python imports the first, whatever was installed later",
                    f"take {tree.parent.parent if name == 'megatron-core' else tree.parent} out of PYTHONPATH, or pip uninstall {name}",
                )
            )
    return found


def _install(row: Row, wanted: str) -> str:
    if row.component == "python":
        return f"make an environment with Python {wanted}"
    if row.component == "cann":
        return "install CANN, or use the image of docs/ascend.md, and source its set_env.sh"
    if row.component == "mindspeed":
        return "git clone MindSpeed at the tag of the wanted version, pip install -e MindSpeed"
    if row.devices == ("cpu",) or row.component == "megatron-core":
        return f"make setup, or pip install '{row.component}{wanted}'"
    return f"pip install '{row.component}{wanted}'"
