"""The plan against measured tensors: cases that a test and a benchmark share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.config.schema import Config, ModelConfig, ParallelConfig
from tandem.engine.fork_ranks import fork_each
from tandem.plan.activations import Setting
from tandem.plan.batch import MicroBatch
from tandem.plan.layout import Layout
from tandem.plan.parameters import stage_parameters
from tandem.plan.peak import step_bytes, update_peak
from tandem.plan.shapes import Shapes, model_config, shapes_of
from tandem.plan.states import rank_states
from tests.engine.ranks import config_for

EXACT = ("weights", "gradients", "optimizer")
WITHIN = {"activations": 0.10, "peak": 0.10}


@dataclass(frozen=True)
class Case:
    name: str
    world_size: int
    parallel: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("single", 1, {}),
    Case("dp2", 2, {}),
    Case("tp2_ep2", 2, {"tp": 2, "ep": 2}),
    Case("pp2", 2, {"pp": 2}),
    Case("pp2_vpp2", 2, {"pp": 2, "vpp": 2}),
    Case("cp2", 2, {"cp": 2}),
    Case("dp2_optimizer_on_cpu", 2, {}, {"optimizer": {"on_cpu": True}}),
    Case("tp2_bf16_optimizer_on_cpu", 2, {"tp": 2}, {"optimizer": {"on_cpu": True}, "model": {"dtype": "bfloat16"}}),
    Case("single_full", 1, {}, {"trainer": {"recompute": "full"}}),
    Case("tp2_vision_cut_bf16", 2, {"tp": 2, "vision_tp": True}, {"model": {"dtype": "bfloat16"}}),
    Case(
        "dp2_selective_frozen_vision", 2, {}, {"trainer": {"recompute": "selective"}, "model": {"dtype": "float32", "freeze_vision": True}}
    ),
)


def predict(config: Config, shapes: Shapes, rank: int, batches: list[MicroBatch]) -> dict[str, int]:
    """Bytes, by what `ranks.measure_update` measures."""
    layout = Layout.of(config)
    setting, stage = Setting.of(config, shapes, layout), layout.place("pp", rank)
    chunks = stage_parameters(shapes, layout, stage, freeze_vision=config.model.freeze_vision, vision_tp=config.parallel.vision_tp)
    states = rank_states(chunks, config, layout, rank)
    peak = update_peak(setting, stage, batches)
    step = step_bytes(chunks, layout.dp * layout.cp, on_cpu=True, fused=config.optimizer.on_cpu)
    total = states.weights + states.gradients + states.optimizer + max(peak.total, step)
    parts = {"weights": states.weights, "gradients": states.gradients, "optimizer": states.optimizer}
    return parts | {"activations": peak.kept, "peak": total}


def compare(
    model: Path, sequences: list, cases: tuple[Case, ...], *, max_tokens: int = 200, timeout_s: float = 600
) -> list[dict[str, Any]]:
    """A row for each case, rank and kind of bytes: layout, rank, what, predicted_bytes, measured_bytes."""
    shapes = shapes_of(model_config(ModelConfig(path=str(model))))
    calls, configs = [], []
    for case in cases:
        settings = {"batch": {"max_tokens_per_device": max_tokens}} | case.settings
        parallel = ParallelConfig(**case.parallel)
        calls.append(
            ("tests.plan.ranks:measure_update", parallel, case.world_size, {"model_path": str(model), "sequences": sequences, **settings})
        )
        trainer = settings.get("trainer", {}) | {"devices_per_node": case.world_size}
        configs.append(config_for(parallel, **settings | {"trainer": trainer}))
    rows = []
    for case, config, ranks in zip(cases, configs, fork_each(calls, timeout_s=timeout_s)):
        for rank, measured in enumerate(ranks):
            batches = [MicroBatch(*batch) for batch in measured.pop("batches")]
            predicted = predict(config, shapes, rank, batches)
            for what, found in measured.items():
                rows.append({"layout": case.name, "rank": rank, "what": what, "predicted_bytes": predicted[what], "measured_bytes": found})
    return rows


def off(row: dict[str, Any]) -> float:
    """Relative difference of prediction and measurement."""
    return abs(row["predicted_bytes"] - row["measured_bytes"]) / max(1, row["measured_bytes"])


def wrong(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are not exact, or not within their limit."""
    return [row for row in rows if off(row) > WITHIN.get(row["what"], 0.0)]
