"""Environment variables that make a run slow, hang or wrong, each with its rule."""

import os
import socket
from collections.abc import Mapping

from tandem.doctor.finding import Finding


def variable_findings(device: str, env: Mapping[str, str] = os.environ, interfaces: set[str] | None = None) -> list[Finding]:
    """Args: interfaces: names of this machine's network interfaces; None: asked of the system."""
    names = interfaces if interfaces is not None else {name for _, name in socket.if_nameindex()}
    found = [*_interfaces(env, names), *_threads(env)]
    if device == "npu":
        found += [*_allocator(env), *_time_limit(env), *_ray_visible(env)]
    return found


def _interfaces(env: Mapping[str, str], names: set[str]) -> list[Finding]:
    found = []
    for variable in ("HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = env.get(variable, "")
        if not value:
            continue
        exact, excluded = value.lstrip("^="), value.startswith("^")
        wanted = [part for part in exact.split(",") if part]
        known = [part for part in wanted if any(name.startswith(part) for name in names)]
        if not excluded and not known:
            found.append(
                Finding(
                    variable,
                    value,
                    ", ".join(sorted(names)),
                    "fault",
                    "no interface of this machine has that name: ranks would wait for each other",
                    f"unset {variable}, or name one that is here",
                )
            )
        else:
            found.append(Finding(variable, value, "an interface"))
    return found


def _threads(env: Mapping[str, str]) -> list[Finding]:
    """Told only where it is set: a run sets it for each of its processes."""
    value = env.get("OMP_NUM_THREADS", "")
    if value and not value.isdigit():
        return [Finding("OMP_NUM_THREADS", value, "a number", "fault", "libraries read it as they start", "unset OMP_NUM_THREADS")]
    return []


def _allocator(env: Mapping[str, str]) -> list[Finding]:
    value = env.get("PYTORCH_NPU_ALLOC_CONF", "")
    if "expandable_segments:true" in value.lower().replace(" ", ""):
        return [
            Finding(
                "PYTORCH_NPU_ALLOC_CONF",
                value,
                "without expandable_segments",
                "fault",
                "it does not go with the sleep mode of colocated generators",
                "unset PYTORCH_NPU_ALLOC_CONF",
            )
        ]
    return []


def _time_limit(env: Mapping[str, str]) -> list[Finding]:
    value = env.get("HCCL_CONNECT_TIMEOUT", "")
    if value and (not value.isdigit() or int(value) < 600):
        return [
            Finding(
                "HCCL_CONNECT_TIMEOUT",
                value,
                "600 or more",
                "fault",
                "ranks that load weights at different speeds give each other up",
                "unset it: a run sets 5400",
            )
        ]
    return []


def _ray_visible(env: Mapping[str, str]) -> list[Finding]:
    name = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
    if env.get(name, "1") != "1":
        return [
            Finding(name, env[name], "1", "fault", "Ray and Tandem would both number the visible devices", f"unset {name}: a run sets 1")
        ]
    return []
