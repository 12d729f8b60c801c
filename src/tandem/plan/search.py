"""The best legal layouts for a number of devices.

Score: seconds of an optimizer step, of compute at a usual efficiency, stretched by the pipeline's bubble, plus sending at usual speeds. The
figures of the machine are the same for all layouts: the order means something, the seconds little.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tandem.config.schema import Config
from tandem.plan.legality import broken_rules
from tandem.plan.plan import Machine, Plan, changed, make_plan, speed
from tandem.plan.shapes import Shapes, model_config

PEAK_FLOPS, EFFICIENCY = 350e12, 0.4  # of a device, where its peak is not known; the share of it that training reaches
IN_NODE, OFF_NODE = 150e9, 20e9  # bytes a second from a device


@dataclass
class Candidate:
    layout: dict[str, int]
    config: Config
    compute_s: float
    bubble_s: float
    traffic_s: float
    plan: Plan = field(init=False)

    @property
    def seconds(self) -> float:
        return self.compute_s + self.bubble_s + self.traffic_s


def best_layouts(config: Config, shapes: Shapes, machine: Machine, limit: int = 10) -> list[Candidate]:
    """Legal layouts on the config's devices, those that fit first, then the fastest; expert tensor parallelism stays as it is.

    The fastest are planned first, and no more than it takes to find `limit` that fit: what a layout holds is most of a plan's work.
    """
    rated = sorted((_rated(layout, tried, shapes, machine) for layout, tried in _legal(config, shapes)), key=lambda one: one.seconds)
    fitting: list[Candidate] = []
    others: list[Candidate] = []
    for one in rated:
        one.plan = make_plan(one.config, shapes, machine)
        (others if one.plan.fits is False else fitting).append(one)
        if len(fitting) == limit:
            break
    return (fitting + others)[:limit]


def _legal(config: Config, shapes: Shapes) -> Iterator[tuple[dict[str, int], Config]]:
    model = model_config(config.model, config.prepare)
    world = config.trainer.nnodes * config.trainer.devices_per_node
    sizes = [size for size in range(1, world + 1) if world % size == 0]
    experts = [size for size in sizes if shapes.num_experts and shapes.num_experts % size == 0] or [1]
    for tp in (size for size in sizes if size <= shapes.num_key_value_heads):
        for pp in (size for size in sizes if shapes.num_layers % size == 0 and tp * size <= world):
            for cp in (size for size in (1, 2, 4, 8) if world % (tp * pp * size) == 0):
                for ep in (size for size in experts if world % (size * pp * config.parallel.etp) == 0):
                    layout = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "vpp": 0}
                    tried = changed(config, {f"parallel.{key}": value for key, value in layout.items()})
                    if not broken_rules(tried, model):
                        yield layout, tried


def _rated(layout: dict[str, int], config: Config, shapes: Shapes, machine: Machine) -> Candidate:
    step, traffic = speed(config, shapes, machine)
    compute = step.done / (config.trainer.nnodes * config.trainer.devices_per_node) / (machine.peak_flops or PEAK_FLOPS) / EFFICIENCY
    idle = compute * (1 / (1 - step.bubble) - 1)
    of_rank = [part for part in traffic if part.group != "publication"]
    seconds = sum((part.num_bytes - part.off_node) / IN_NODE + part.off_node / OFF_NODE for part in of_rank)
    return Candidate(layout, config, compute, idle, seconds)
