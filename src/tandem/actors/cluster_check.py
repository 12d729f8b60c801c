"""`tandem cluster check`: put a small actor on every seat of a run, and let each say where it is and what it finds there."""

import hashlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem.actors import cluster
from tandem.actors.actor import claimed_devices
from tandem.actors.waiting import wait
from tandem.config.schema import Config
from tandem.doctor.versions import versions
from tandem.errors import UserError

SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Place:
    """What one seat of the run is like."""

    seat: str  # `rank 3` or `generator 0`
    node: str  # Ray's id
    address: str
    host: str
    devices: list[str]  # ids of the accelerators that it has; none on CPU
    versions: dict[str, str]
    environment: dict[str, str]  # of the variables that every process of a run must have
    free_shared_memory_bytes: int
    model: str  # digest of the model folder's config and index; empty: it is not there
    sees_run_dir: bool  # the folder that the controller's node has written into


class Probe:
    """Holds the devices of a seat."""

    def look(self, seat: str, config: Config, shared: list[str], variables: list[str], mark: str) -> Place:
        import ray

        from tandem.devices import DEVICES

        return Place(
            seat,
            ray.get_runtime_context().get_node_id(),
            ray.util.get_node_ip_address(),
            socket.gethostname(),
            shared or claimed_devices(DEVICES[config.device]),
            versions(),
            {name: os.environ.get(name, "") for name in variables},
            shutil.disk_usage(SHM).free,
            model_digest(config.model.path),
            bool(mark) and Path(mark).exists(),
        )


def model_digest(path: str) -> str:
    """Of a model folder's config and weight index, 12 hexadecimal digits; empty when there is no such folder."""
    folder = Path(path).expanduser()
    if not path or not (folder / "config.json").is_file():
        return ""
    index = folder / "model.safetensors.index.json"
    files = [folder / "config.json", *([index] if index.is_file() else [])]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def look_around(config: Config, device, joined: bool, mark: str, timeout_s: float) -> list[Place]:
    """A `Place` for each training rank and generator. `cluster.start` has run.

    Args:
        joined: what that returned.
        mark: a file in the run's folder, which other nodes see when the folder is shared; empty: not looked for.

    Raises:
        UserError: the cluster cannot seat the run; says what is missing.
    """
    import ray

    cluster.check_resources(config, device, joined)
    seats = cluster.seats(config, device, trainers=True, generators=True, timeout_s=timeout_s)
    probe = ray.remote(Probe)
    variables = list(cluster.actor_environment(config, device))

    def ask(label: str, seat: Mapping[str, Any], shared: list[str]) -> tuple[Any, Any]:
        actor = probe.options(**seat).remote()
        return actor, actor.look.remote(label, config, shared, variables, mark)

    ranks = [ask(f"rank {index}", seat, []) for index, seat in enumerate(seats.trainers)]
    places: list[Place] = wait([future for _, future in ranks], timeout_s, "looking at the seats of the training ranks")
    shared = [[id for rank in of for id in places[rank].devices] for of in seats.shared]
    engines = [ask(f"generator {index}", seat, devices) for index, (seat, devices) in enumerate(zip(seats.generators, shared))]
    places += wait([future for _, future in engines], timeout_s, "looking at the seats of the generators")
    for index, of in enumerate(seats.shared):
        mine = places[len(ranks) + index]
        assert all(places[rank].node == mine.node for rank in of), f"{mine.seat} is not on the node of the ranks whose devices it shares"
    for actor, _ in ranks + engines:
        ray.kill(actor)
    return places


def faults(config: Config, places: list[Place], environment: Mapping[str, str]) -> list[UserError]:
    """What would fail later, of a run whose actors should have `environment`."""
    nodes = list({place.node: place for place in places}.values())
    return [
        *_other_versions(nodes),
        *_other_models(nodes),
        *_lost_variables(places, environment),
        *_little_memory(config, nodes),
        *_blind(nodes),
    ]


def _other_versions(nodes: list[Place]) -> Iterator[UserError]:
    first = nodes[0]
    for other in nodes[1:]:
        names = sorted(name for name in {*first.versions, *other.versions} if first.versions.get(name) != other.versions.get(name))
        if names:
            differ = (f"{name} {first.versions.get(name, 'absent')} and {other.versions.get(name, 'absent')}" for name in names)
            yield UserError(f"{first.address} and {other.address} have other versions", "; ".join(differ), "install the same on every node")


def _other_models(nodes: list[Place]) -> Iterator[UserError]:
    if len({place.model for place in nodes}) > 1:
        told = ", ".join(f"{place.address}: {place.model or 'absent'}" for place in nodes)
        yield UserError("the nodes do not have the same model folder", told, "have it under model.path on every node")


def _lost_variables(places: list[Place], environment: Mapping[str, str]) -> Iterator[UserError]:
    for place in places:
        wrong = {name: place.environment.get(name) for name, value in environment.items() if place.environment.get(name) != value}
        if wrong:
            yield UserError(
                f"{place.seat} on {place.address} has {wrong}", "the variables of the run did not reach it", "start Ray on that node again"
            )


def _little_memory(config: Config, nodes: list[Place]) -> Iterator[UserError]:
    for place in nodes:
        if place.free_shared_memory_bytes < config.sync.bucket_bytes:
            yield UserError(
                f"/dev/shm of {place.address} has {place.free_shared_memory_bytes >> 20} MiB free",
                f"a bucket of weights, sync.bucket_bytes, is {config.sync.bucket_bytes >> 20} MiB and travels through it",
                "start the container with a larger --shm-size, or set sync.bucket_bytes lower",
            )


def _blind(nodes: list[Place]) -> Iterator[UserError]:
    blind = sorted(place.address for place in nodes if not place.sees_run_dir)
    if blind and len(nodes) > 1:
        yield UserError(
            f"the folder of runs is not shared: {', '.join(blind)} cannot see it",
            "every rank writes its part of a checkpoint there",
            "set run_dir to a folder on a file system that every node mounts",
        )


def as_json(places: list[Place], found: list[UserError]) -> dict[str, Any]:
    return {
        "ok": not found,
        "places": [asdict(place) for place in places],
        "faults": [{"what": fault.what, "why": fault.why, "fix": fault.fix} for fault in found],
    }
