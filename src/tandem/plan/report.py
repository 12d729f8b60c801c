"""A plan as JSON: the keys of docs/plan.md. Bytes are integers, shares between 0 and 1."""

from typing import Any

from tandem.errors import UserError
from tandem.plan.advice import Change
from tandem.plan.phases import Memory
from tandem.plan.plan import Plan
from tandem.plan.search import Candidate

LAYOUT = ("world", "devices_per_node", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "expert_dp")


def refused_json(recipe: str, broken: list[UserError]) -> dict[str, Any]:
    """Of a layout that cannot be."""
    return {"recipe": recipe, "legal": False, "fits": False, "broken_rules": [vars_of(error) for error in broken]}


def vars_of(error: UserError) -> dict[str, str]:
    return {"what": error.what, "why": error.why, "fix": error.fix}


def plan_json(plan: Plan, change: Change | None) -> dict[str, Any]:
    config, layout, made = plan.config, plan.layout, plan.generator
    return {
        "recipe": config.recipe,
        "device": config.device,
        "legal": True,
        "broken_rules": [],
        "fits": plan.fits,
        "checks": [
            {"place": c.place, "phase": c.phase, "what": c.why, "needed_bytes": c.needed, "available_bytes": c.available, "fits": c.fits}
            for c in plan.checks
        ],
        "change": change,
        "model": {"path": config.model.path, "num_layers": plan.shapes.num_layers, "dtype": config.model.dtype},
        "layout": {
            **{name: getattr(layout, name) for name in LAYOUT},
            "generators": config.rollout.replicas, "generator_tp": config.rollout.tp, "placement": config.rollout.placement,
        },
        "batch": {
            "num_micro_batches": plan.num_batches, "lengths": list(plan.batch.lengths),
            "num_tokens": plan.batch.num_tokens, "num_image_tokens": plan.batch.num_image_tokens,
        },
        "stages": [
            {
                "stage": stage.rank.stage,
                "layers": [[layers.start, layers.stop] for layers in stage.layers],
                "num_ranks": stage.num_ranks,
                "num_parameters": stage.rank.states.num_parameters,
                "weights_bytes": stage.rank.states.weights,
                "gradients_bytes": stage.rank.states.gradients,
                "optimizer_bytes": stage.rank.states.optimizer,
                "phases": {phase: _memory(memory) for phase, memory in stage.phases.items()},
            }
            for stage in plan.stages
        ],
        "host": {phase: _memory(memory) for phase, memory in plan.host.items()},
        "generator": {
            "weights_bytes": made.weights, "working_bytes": made.working, "cache_bytes": made.cache,
            "bytes_of_token": made.of_token, "bytes_of_sequence": made.of_sequence,
        },
        "compute": {
            "flops_of_step": plan.compute.flops, "flops_done": plan.compute.done, "bubble": plan.compute.bubble,
            "mfu_ceiling": plan.compute.mfu_ceiling, "seconds_at_peak": plan.compute.seconds,
        },
        "traffic": [{"group": t.group, "size": t.size, "bytes": t.num_bytes, "off_node_bytes": t.off_node} for t in plan.traffic],
    }  # fmt: skip


def _memory(memory: Memory) -> dict[str, int]:
    return memory.parts | {"total": memory.total}


def search_json(found: list[Candidate]) -> list[dict[str, Any]]:
    return [
        {
            **one.layout, "dp": one.plan.layout.dp, "fits": one.plan.fits,
            "device_bytes": max((memory.total for stage in one.plan.stages for memory in stage.phases.values()), default=0),
            "seconds": one.seconds, "compute_s": one.compute_s, "bubble_s": one.bubble_s, "traffic_s": one.traffic_s,
        }
        for one in found
    ]  # fmt: skip
