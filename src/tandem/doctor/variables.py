"""Environment variables that make a run slow, hang or wrong, as a table of rules. What is not set is right: a run sets what it needs."""

import os
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tandem.doctor.finding import Finding

ALL, NPU, GPU = ("npu", "gpu", "cpu"), ("npu",), ("gpu",)


class Rule(NamedTuple):
    variable: str
    devices: tuple[str, ...]
    is_right: Callable[[str, set[str]], bool]  # of the value, and the names of this machine's network interfaces
    wanted: str
    why: str
    fix: str


def _names_an_interface(value: str, interfaces: set[str]) -> bool:
    """As NCCL and HCCL read it: names or their beginnings, `=` exact names, `^` all but these."""
    names = [name for name in value.lstrip("^=").split(",") if name]
    if value.startswith("^"):
        return any(not there.startswith(tuple(names)) for there in interfaces - {"lo"})
    if value.startswith("="):
        return any(name in interfaces for name in names)
    return any(there.startswith(name) for name in names for there in interfaces)


def _names_interfaces(value: str, interfaces: set[str]) -> bool:
    """As gloo reads it: whole names."""
    return set(value.split(",")) <= interfaces


_WAIT = "no interface of this machine has that name: ranks would wait for each other"
RULES = (
    Rule("HCCL_SOCKET_IFNAME", NPU, _names_an_interface, "an interface", _WAIT, "unset it, or name one that `ip link` shows"),
    Rule("NCCL_SOCKET_IFNAME", GPU, _names_an_interface, "an interface", _WAIT, "unset it, or name one that `ip link` shows"),
    Rule("GLOO_SOCKET_IFNAME", ALL, _names_interfaces, "an interface", _WAIT, "unset it, or name one that `ip link` shows"),
    Rule("OMP_NUM_THREADS", ALL, lambda value, _: value.isdigit(), "a number", "libraries read it as they start", "unset it"),
    Rule(
        *("PYTORCH_NPU_ALLOC_CONF", NPU, lambda value, _: "expandable_segments:true" not in value.lower().replace(" ", "")),
        *("without expandable_segments", "it does not go with the sleep mode of colocated generators", "unset it"),
    ),
    Rule(
        *("HCCL_CONNECT_TIMEOUT", NPU, lambda value, _: value.isdigit() and int(value) >= 600),
        *("600 or more", "ranks that load weights at different speeds give each other up", "unset it: a run sets 5400"),
    ),
    Rule(
        *("RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES", NPU, lambda value, _: value == "1"),
        *("1", "Ray and Tandem would both number the visible devices", "unset it: a run sets 1"),
    ),
)


def variable_findings(device: str, env: Mapping[str, str] = os.environ, interfaces: set[str] | None = None) -> list[Finding]:
    """Of the variables that are set. Args: interfaces: names of this machine's network interfaces; None: asked of the system."""
    names = interfaces if interfaces is not None else {name for _, name in socket.if_nameindex()}
    found = []
    for rule in RULES:
        value = env.get(rule.variable, "")
        if value and device in rule.devices:
            is_right = rule.is_right(value, names)
            found.append(Finding(rule.variable, value, rule.wanted, *(("ok",) if is_right else ("fault", rule.why, rule.fix))))
    return found
