"""Ray: start or join a cluster, check that it has what the run needs, seat the actors."""

import os
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
    needed = config.trainer.nnodes * config.trainer.devices_per_node
    on_cpu = device.RAY_RESOURCE == "CPU"
    ray.init(
        address="local",  # whatever RAY_ADDRESS says
        num_cpus=needed * 2 + _CONTROLLER_CPUS,
        resources={} if device.RAY_RESOURCE in ("CPU", "GPU") else {device.RAY_RESOURCE: needed},
        include_dashboard=bool(config.cluster.dashboard_port),
        dashboard_host="127.0.0.1",
        dashboard_port=config.cluster.dashboard_port or None,
        object_store_memory=config.cluster.object_store_bytes or (CPU_OBJECT_STORE_BYTES if on_cpu else None),
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )


def check_resources(config: Config, device) -> None:
    """Raises UserError when the cluster has fewer devices than the run needs, instead of waiting for them for ever."""
    import ray

    per_node, nodes = config.trainer.devices_per_node, config.trainer.nnodes
    have, needed = int(ray.cluster_resources().get(device.RAY_RESOURCE, 0)), per_node * nodes
    if have < needed:
        raise UserError(
            f"the Ray cluster has {have} {device.RAY_RESOURCE}, the run needs {needed} ({nodes} nodes x {per_node})",
            "training ranks are seated one on each device",
            f"""join the missing nodes: ray start --address <head:port> --resources '{{"{device.RAY_RESOURCE}": {per_node}}}', """
            "or lower trainer.nnodes / trainer.devices_per_node",
        )


def seats(config: Config, device, timeout_s: float) -> list[Any]:
    """One placement group for each node, a bundle for each device on it.

    Raises:
        UserError: the cluster cannot seat them within `timeout_s` seconds.
    """
    import ray
    from ray.util.placement_group import placement_group

    bundle = {"CPU": 2.0} if device.RAY_RESOURCE == "CPU" else {device.RAY_RESOURCE: 1.0, "CPU": 2.0}
    groups = [placement_group([bundle] * config.trainer.devices_per_node, strategy="STRICT_PACK") for _ in range(config.trainer.nnodes)]
    ready, waiting = ray.wait([group.ready() for group in groups], num_returns=len(groups), timeout=timeout_s)
    if waiting:
        raise UserError(
            f"Ray could seat {len(ready)} of {len(groups)} nodes within {timeout_s:.0f} s",
            f"each needs {config.trainer.devices_per_node} x {bundle} free on one node",
            "look at `ray status`; end the runs that hold the devices, or add nodes",
        )
    return groups


def cause_of_death(error: Exception) -> str:
    """What Ray says about an actor that is gone, without its list of guesses."""
    text = str(error).split("Some common causes")[0].strip()
    return text[text.find("The actor is dead because") :] if "The actor is dead because" in text else text


def seat(groups: list[Any], index: int, config: Config) -> dict[str, Any]:
    """Ray options that put an actor on device `index` of the whole run, sharing it with another."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    per_node = config.trainer.devices_per_node
    strategy = PlacementGroupSchedulingStrategy(groups[index // per_node], placement_group_bundle_index=index % per_node)
    return {"num_cpus": 1, "scheduling_strategy": strategy}
