"""Ray: start or join a cluster, check that it has what the run needs, seat the actors."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tandem.config.schema import Config
from tandem.errors import UserError

CPU_OBJECT_STORE_BYTES = 256 << 20
_CONTROLLER_CPUS = 1


def start(config: Config, device) -> None:
    """Join the cluster at `cluster.address`, or start a local one bound to loopback.

    Raises:
        UserError: nothing listens at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if config.cluster.address:
        try:
            ray.init(address=config.cluster.address, log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            raise UserError(
                f"no Ray cluster at cluster.address={config.cluster.address}", str(error), "start its head: ray start --head --port <port>"
            ) from error
        return
    needed = devices_needed(config)
    on_cpu = device.RAY_RESOURCE == "CPU"
    ray.init(
        address="local",  # whatever RAY_ADDRESS says
        num_cpus=needed + config.rollout.replicas * config.rollout.tp + _CONTROLLER_CPUS,
        resources={} if device.RAY_RESOURCE in ("CPU", "GPU") else {device.RAY_RESOURCE: needed},
        include_dashboard=bool(config.cluster.dashboard_port),
        dashboard_host="127.0.0.1",
        dashboard_port=config.cluster.dashboard_port or None,
        object_store_memory=config.cluster.object_store_bytes or (CPU_OBJECT_STORE_BYTES if on_cpu else None),
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )


def devices_needed(config: Config) -> int:
    """Of the training ranks, and of the generators when they have their own."""
    training = config.trainer.nnodes * config.trainer.devices_per_node
    return training + (config.rollout.replicas * config.rollout.tp if own_devices(config) else 0)


def check_resources(config: Config, device) -> None:
    """Raises UserError when the cluster has fewer devices than the run needs, instead of waiting for them for ever."""
    import ray

    per_node, nodes = config.trainer.devices_per_node, config.trainer.nnodes
    have, needed = int(ray.cluster_resources().get(device.RAY_RESOURCE, 0)), devices_needed(config)
    own = f" + {needed - per_node * nodes} for the generators" if needed > per_node * nodes else ""
    if have < needed:
        raise UserError(
            f"the Ray cluster has {have} {device.RAY_RESOURCE}, the run needs {needed} ({nodes} nodes x {per_node}{own})",
            "training ranks are seated one on each device",
            f"""join the missing nodes: ray start --address <head:port> --resources '{{"{device.RAY_RESOURCE}": {per_node}}}', """
            "or lower trainer.nnodes / trainer.devices_per_node",
        )


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
    first = [index * rollout.tp % world for index in range(rollout.replicas if generators else 0)]  # the device of each one's first worker
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


def own_devices(config: Config, trainers: bool = True) -> bool:
    """Whether generators have devices that no training rank uses."""
    return config.rollout.placement == "split" or not trainers


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
