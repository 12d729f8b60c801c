"""Ray: start or join a cluster, check that it has what the run needs, seat the actors."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from tandem.config.preflight import RUNNING_CLUSTER
from tandem.config.schema import Config
from tandem.devices import process_environment
from tandem.errors import UserError

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
CPU_OBJECT_STORE_BYTES = 256 << 20
_CONTROLLER_CPUS = 1
# What training and generation listen to; a run's actors start in Ray's environment, which is that of another shell or machine.
PASSED_ON = ("ASCEND_", "CANN_", "FLA_", "GLOO_", "HCCL_", "HF_", "MINDSPEED_", "NCCL_", "NVTE_", "PYTORCH_", "TORCH", "TRITON_", "VLLM_")
LEFT_OUT = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|VISIBLE_DEVICES$|_HOST_IP$|_IF_IP$|_HOME(_PATH)?$|_OPP_PATH$|_AICPU_PATH$")


def start(config: Config, device) -> bool:
    """Join the cluster at `cluster.address`, or start one on this machine, bound to loopback. Returns whether it joined one.

    Raises:
        UserError: nothing listens at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    ours = {"runtime_env": {"env_vars": actor_environment(config, device)}, "log_to_driver": False, "logging_level": "ERROR"}
    if config.cluster.address:
        try:
            ray.init(address=config.cluster.address, **ours)
            return True
        except ConnectionError as error:
            if config.cluster.address != RUNNING_CLUSTER:
                raise UserError(
                    f"no Ray cluster at cluster.address={config.cluster.address}",
                    str(error),
                    f"start its head: {start_head(config, device)}",
                ) from error
    on_cpu = device.RAY_RESOURCE == "CPU"
    with _loopback_stays():
        ray.init(  # it finds the accelerators of this machine by itself
            address="local",  # whatever RAY_ADDRESS says
            num_cpus=devices_needed(config) + config.rollout.replicas * config.rollout.tp + _CONTROLLER_CPUS,
            include_dashboard=bool(config.cluster.dashboard_port),
            dashboard_host=LOOPBACK,
            dashboard_port=config.cluster.dashboard_port or None,
            object_store_memory=config.cluster.object_store_bytes or (CPU_OBJECT_STORE_BYTES if on_cpu else None),
            _node_ip_address=LOOPBACK,
            **ours,
        )
    if (address := ray.util.get_node_ip_address()) != LOOPBACK:
        log.warning("this version of Ray does not keep to loopback: others can reach it at %s", address)
    return False


@contextmanager
def _loopback_stays() -> Iterator[None]:
    """Ray takes 127.0.0.1 for the machine's address in the network, and then listens on every interface, unless there are no others.

    That it believes of systems where it has no clusters; here it is told so.
    """
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def services() -> list[tuple[str, psutil.Process]]:
    """Ray's processes that this one has started, without which a cluster does not work; none of a cluster that was joined.

    Ray notices the end of its control service after a minute, and then ends this process without a word to it.
    """
    return [(name, process) for process in psutil.Process().children() if (name := process.name()) in ("gcs_server", "raylet")]


def actor_environment(config: Config, device, exported: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of every actor, on every node: the device's, and what is exported here for the libraries that run there.

    Left out are secrets, which Ray would show to whoever looks at the cluster, and what differs from node to node.
    """
    passed = {name: value for name, value in exported.items() if name.startswith(PASSED_ON) and not LEFT_OUT.search(name)}
    return passed | process_environment(device, config.trainer.num_threads, exported)


def devices_needed(config: Config) -> int:
    """Of the training ranks, and of the generators when they have their own."""
    training = config.trainer.nnodes * config.trainer.devices_per_node
    return training + (config.rollout.replicas * config.rollout.tp if own_devices(config) else 0)


def check_resources(config: Config, device, joined: bool, generators: bool = True) -> None:
    """Raises UserError when the cluster cannot seat the run, instead of waiting for devices for ever; it says which nodes are missing.

    Args:
        joined: whether the cluster is one that others can join, and not this run's own.
        generators: whether some share the ranks' devices.
    """
    import ray

    resource, per_node, nodes = device.RAY_RESOURCE, config.trainer.devices_per_node, config.trainer.nnodes
    cpus = cpus_of_nodes(config, generators)
    of_nodes = cpus if resource == "CPU" else [per_node] * nodes
    have = {f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}": node["Resources"] for node in ray.nodes() if node["Alive"]}
    capacities = [int(resources.get(resource, 0)) for resources in have.values()]
    own = [config.rollout.tp] * (config.rollout.replicas if own_devices(config) else 0)
    missing = without_a_node(of_nodes + own, capacities)
    if not missing:
        if resource != "CPU":
            _check_cpus(cpus, [capacity // per_node for capacity in capacities], [int(node.get("CPU", 0)) for node in have.values()])
        return
    needs = f"{nodes} nodes x {per_node}" + (" ranks, generators beside them, the controller" if resource == "CPU" else "")
    needs += f" + {len(own)} x {config.rollout.tp} for the generators" if own else ""
    joins = join_line(device, max(of_nodes), "<this machine>:6766")
    there = ", ".join(f"{node.rsplit(':', 1)[0]}: {number}" for node, number in zip(have, capacities))
    head = config.cluster.address if config.cluster.address != RUNNING_CLUSTER else ray.get_runtime_context().gcs_address
    raise UserError(
        f"the Ray cluster has {sum(capacities)} {resource} ({there}), the run needs {sum(of_nodes + own)} ({needs})",
        "training ranks of a node, and the workers of a generator, are seated together, one on each device",
        f"on {len(missing)} more {'machine' if len(missing) == 1 else 'machines'}: {join_line(device, max(missing), head)}"
        if joined
        else f"on this machine: {start_head(config, device)}; on each other one: {joins}; "
        "then run again with cluster.address=<this machine>:6766. Or lower trainer.nnodes / trainer.devices_per_node",
    )


def cpus_of_nodes(config: Config, generators: bool = True) -> list[int]:
    """What the actors on each node claim of Ray's CPUs: one each training rank and generator beside them; the controller on the first."""
    per_node = config.trainer.devices_per_node
    beside = [first // per_node for first in _first_devices(config)] if generators and not own_devices(config) else []
    return [per_node + beside.count(node) + (_CONTROLLER_CPUS if node == 0 else 0) for node in range(config.trainer.nnodes)]


def _check_cpus(claims: Sequence[int], places: Sequence[int], cpus: Sequence[int]) -> None:
    """Raises UserError when nodes that have the devices lack CPUs of Ray's for the actors, which would wait for them.

    Args:
        claims: CPUs of the actors on each node of the run.
        places, cpus: of each node of the cluster, for how many nodes of the run it has devices, and its CPUs.
    """
    places, left = list(places), list(cpus)
    for claim in sorted(claims, reverse=True):
        fitting = [node for node, number in enumerate(left) if number >= claim and places[node]]
        if not fitting:
            raise UserError(
                f"the Ray cluster's nodes have {', '.join(map(str, cpus))} CPU, the actors on a node of the run claim {max(claims)}",
                "Ray counts one for each training rank, for each generator beside them and for the controller, whatever they use",
                f"start Ray on those machines again with --num-cpus {max(claims)}: it is Ray's count, and may be more than there are",
            )
        best = min(fitting, key=left.__getitem__)
        left[best], places[best] = left[best] - claim, places[best] - 1


def without_a_node(groups: Sequence[int], capacities: Sequence[int]) -> list[int]:
    """The groups of devices, each of which must be on one node, that find no place: largest first, each where it fits best."""
    left, missing = list(capacities), []
    for group in sorted(groups, reverse=True):
        fitting = [node for node, number in enumerate(left) if number >= group]
        if fitting:
            left[min(fitting, key=left.__getitem__)] -= group
        else:
            missing.append(group)
    return missing


def start_head(config: Config, device) -> str:
    """The command that starts a cluster's head."""
    number = max(cpus_of_nodes(config)) if device.RAY_RESOURCE == "CPU" else config.trainer.devices_per_node
    return f"ray start --head --port 6766 {_ray_resources(device, number)}"


def join_line(device, number: int, head: str) -> str:
    """The command that joins a machine with `number` devices."""
    return f"ray start --address {head} {_ray_resources(device, number)}"


def _ray_resources(device, number: int) -> str:
    known = {"CPU": "--num-cpus", "GPU": "--num-gpus"}.get(device.RAY_RESOURCE)
    return f"{known} {number}" if known else f"""--resources '{{"{device.RAY_RESOURCE}": {number}}}'"""


@dataclass(frozen=True)
class Seats:
    """Ray's options for each actor: where it runs and the devices it claims.

    A colocated generator claims none: it is told the devices of the training ranks `shared[i]` that it shares with them.
    """

    trainers: list[dict[str, Any]]
    generators: list[dict[str, Any]]
    shared: list[range]  # for each generator; empty ranges where it has devices of its own


def seats(config: Config, device, *, trainers: bool, generators: bool, timeout_s: float) -> Seats:
    """Places for the actors of a run. Training ranks fill node after node; a generator never spans nodes.

    Args:
        trainers, generators: which of the two the run has. Generators alone have the devices to themselves.

    Raises:
        UserError: the cluster cannot seat them within `timeout_s` seconds.
    """
    rollout, per_node = config.rollout, config.trainer.devices_per_node
    world = per_node * config.trainer.nnodes
    claims = own_devices(config, trainers)
    first = _first_devices(config) if generators else []
    guests = [] if claims else first
    bundles = [{"CPU": 1.0 + guests.count(rank)} | _devices(device, 1) for rank in range(world)] if trainers else []
    groups = [_group(bundles[start : start + per_node]) for start in range(0, len(bundles), per_node)]
    own = [_group([{"CPU": float(rollout.tp)} | _devices(device, rollout.tp)]) for _ in first] if claims else []
    _wait_for(groups + own, timeout_s)
    on_trainers = [_seat(groups[rank // per_node], rank % per_node) for rank in range(world if trainers else 0)]
    of_trainers = [seat | _claim(device, 1) for seat in on_trainers]
    if claims:
        return Seats(of_trainers, [_seat(group, 0) | _claim(device, rollout.tp) for group in own], [range(0) for _ in own])
    return Seats(of_trainers, [on_trainers[rank] for rank in first], [range(rank, rank + rollout.tp) for rank in first])


def _first_devices(config: Config) -> list[int]:
    """The device of each generator's first worker, where generators share the trainer's."""
    world = config.trainer.devices_per_node * config.trainer.nnodes
    return [index * config.rollout.tp % world for index in range(config.rollout.replicas)]


def own_devices(config: Config, trainers: bool = True) -> bool:
    """Whether generators have devices that no training rank uses."""
    return config.rollout.placement == "split" or not trainers


def visible_devices(config: Config, places: list[tuple[str, list[str]]], shared: range) -> list[str]:
    """Ids of the devices that a generator sees, its own first: those of the ranks `shared`. CUDA opens memory of visible devices only.

    Args:
        places: of each training rank its node and the ids of its devices.
    """
    own = [id for rank in shared for id in places[rank][1]]
    if not own or config.sync.transport != "device" or config.device != "gpu":
        return own
    return own + [id for node, ids in places if node == places[shared[0]][0] for id in ids if id not in own]


def _devices(device, number: int) -> dict[str, float]:
    return {} if device.RAY_RESOURCE == "CPU" else {device.RAY_RESOURCE: float(number)}


def _claim(device, number: int) -> dict[str, Any]:
    """Options of an actor that has `number` devices to itself."""
    if device.RAY_RESOURCE == "CPU":
        return {}
    return {"num_gpus": number} if device.RAY_RESOURCE == "GPU" else {"resources": {device.RAY_RESOURCE: number}}


def _group(bundles: list[dict[str, float]]) -> Any:
    from ray.util.placement_group import placement_group

    return placement_group(bundles, strategy="STRICT_PACK")


def _wait_for(groups: list[Any], timeout_s: float) -> None:
    import ray

    ready, waiting = ray.wait([group.ready() for group in groups], num_returns=len(groups), timeout=timeout_s)
    if waiting:
        raise UserError(
            f"Ray could seat {len(ready)} of {len(groups)} groups of actors within {timeout_s:.0f} s",
            f"each must find its place on one node; one that waits needs {groups[-1].bundle_specs}",
            "look at `ray status`; end the runs that hold the devices, or add nodes",
        )


def _seat(group: Any, bundle: int) -> dict[str, Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return {"num_cpus": 1, "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)}


def answering_aside(kind: type, *methods: str) -> Any:
    """The Ray actor class of `kind` whose `methods` answer beside whatever its main thread is doing."""
    import ray

    aside = {name: ray.method(concurrency_group="aside")(getattr(kind, name)) for name in methods}
    return ray.remote(concurrency_groups={"aside": 4})(type(kind.__name__, (kind,), aside))


def run_on(node: str, function: Callable[..., Any], *args: Any, timeout_s: float) -> None:
    """Call `function` in a process on a node; nothing when the node is gone."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if any(alive["NodeID"] == node and alive["Alive"] for alive in ray.nodes()):
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        ray.get(ray.remote(num_cpus=0)(function).options(scheduling_strategy=there).remote(*args), timeout=timeout_s)


def cause_of_death(error: Exception) -> str:
    """What Ray says about an actor that is gone, without its list of guesses."""
    text = str(error).split("Some common causes")[0].strip()
    return text[text.find("The actor is dead because") :] if "The actor is dead because" in text else text
