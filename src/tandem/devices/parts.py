"""What the layers of the model are made of on a device: found by looking which packages are installed, without importing one."""

import importlib.util
from dataclasses import dataclass
from types import ModuleType

from tandem.errors import UserError


@dataclass(frozen=True)
class Parts:
    """`fused_layers`: linears, norms, attention and experts of the device's own library; `fla`: its kernel of the gated delta rule.

    What is not fused is portable PyTorch, which runs everywhere.
    """

    fused_layers: bool
    fla: bool
    reasons: tuple[str, ...]  # a line for each of the two


def choose_parts(device: ModuleType, requested: str = "auto") -> Parts:
    """What `device`, a module of tandem.devices, uses with what is installed here.

    Args:
        requested: config key `model.layers`: `auto` takes what is installed, `portable` nothing of it, `fused` insists on all.

    Raises:
        UserError: `fused`, and a package is missing or this device has none.
    """
    layers, layers_why = _choose("layers", device.FUSED_LAYERS, device.NAME, requested)
    rule, rule_why = _choose("gated delta rule", device.FUSED_DELTA_RULE, device.NAME, requested)
    return Parts(layers, rule, (layers_why, rule_why))


def _choose(what: str, package: str, device: str, requested: str) -> tuple[bool, str]:
    if requested == "portable":
        return False, f"{what}: portable, model.layers=portable asks for it"
    if package and importlib.util.find_spec(package) is not None:
        return True, f"{what}: {package}, which is installed"
    why = f"{package} is not installed" if package else f"there is no other for {device}"
    if requested == "fused":
        fix = f"install {package}, or set model.layers=portable" if package else "set model.layers=auto"
        raise UserError(f"model.layers = fused on device {device}: {what}", why, fix)
    return False, f"{what}: portable, {why}"
