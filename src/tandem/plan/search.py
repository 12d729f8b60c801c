"""The best legal layouts for a number of devices.

Score: seconds of an optimizer step, of compute at a usual efficiency, stretched by the pipeline's bubble, plus sending at usual speeds. The
figures of the machine are the same for all layouts: the order means something, the seconds little.
"""

from dataclasses import dataclass

from tandem.config.schema import Config
from tandem.plan.legality import broken_rules
from tandem.plan.plan import Machine, Plan, changed, make_plan
from tandem.plan.shapes import Shapes, model_config

PEAK_FLOPS, EFFICIENCY = 350e12, 0.4  # of a device, where its peak is not known; the share of it that training reaches
IN_NODE, OFF_NODE = 150e9, 20e9  # bytes a second from a device


@dataclass(frozen=True)
class Candidate:
    layout: dict[str, int]
    plan: Plan
    compute_s: float
    bubble_s: float
    traffic_s: float

    @property
    def seconds(self) -> float:
        return self.compute_s + self.bubble_s + self.traffic_s


def best_layouts(config: Config, shapes: Shapes, machine: Machine, limit: int = 10) -> list[Candidate]:
    """Legal layouts on the config's devices, those that fit first, then the fastest; expert tensor parallelism stays as it is."""
    found, model = [], model_config(config.model, config.prepare)
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
                        found.append(_candidate(layout, make_plan(tried, shapes, machine)))
    return sorted(found, key=lambda one: (one.plan.fits is False, one.seconds))[:limit]


def _candidate(layout: dict[str, int], plan: Plan) -> Candidate:
    compute = plan.compute.done / plan.layout.world / (plan.machine.peak_flops or PEAK_FLOPS) / EFFICIENCY
    idle = compute * (1 / (1 - plan.compute.bubble) - 1)
    of_rank = [part for part in plan.traffic if part.group != "publication"]
    seconds = sum((part.num_bytes - part.off_node) / IN_NODE + part.off_node / OFF_NODE for part in of_rank)
    return Candidate(layout, plan, compute, idle, seconds)
