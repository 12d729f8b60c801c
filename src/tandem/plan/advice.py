"""What makes a plan fit: changes tried in order of what they cost, first each alone, then one after another."""

import math
from collections.abc import Iterator
from typing import Any

from tandem.plan.batch import longest_sequence
from tandem.plan.generator import model_len
from tandem.plan.legality import broken_rules
from tandem.plan.plan import Plan, changed, make_plan
from tandem.plan.shapes import model_config

Change = dict[str, Any]  # settings by dotted key


def smallest_change(plan: Plan) -> Change | None:
    """Settings under which the plan fits; None when no change that is known here makes it fit."""
    candidates = list(_candidates(plan))
    for change in candidates:
        if _excess(plan, change) == 0:
            return change
    together, least = Change(), _excess(plan, {})
    for change in candidates:
        tried = together | change  # a later value of the same setting goes further
        if (excess := _excess(plan, tried)) < least:
            together, least = tried, excess
        if least == 0:
            return _without_needless(plan, together)
    return None


def _without_needless(plan: Plan, change: Change) -> Change:
    """The change without what it can do without, the most costly looked at first."""
    for key in reversed(list(change)):
        rest = {name: value for name, value in change.items() if name != key}
        if _excess(plan, rest) == 0:
            change = rest
    return change


def _excess(plan: Plan, change: Change) -> float:
    """By how much the plan with a change does not fit, as shares of what is there; infinite when it is illegal."""
    config = changed(plan.config, change)
    if broken_rules(config, model_config(config.model, config.prepare)):
        return math.inf
    checks = make_plan(config, plan.shapes, plan.machine).checks
    return sum((check.needed - check.available) / max(1, check.available) for check in checks if not check.fits)


def _candidates(plan: Plan) -> Iterator[Change]:
    """Cheapest first: work done again, smaller pieces, host memory, the generator's share, the layout, more nodes."""
    config, parallel = plan.config, plan.config.parallel
    if config.trainer.recompute == "none":
        yield {"trainer.recompute": "selective"}
    if config.trainer.recompute != "full":
        yield {"trainer.recompute": "full"}
    least = -(-longest_sequence(config) // parallel.cp)
    if config.batch.micro_batch_size > 1:
        yield {"batch.micro_batch_size": 1}
    elif config.batch.micro_batch_size == 0 and config.batch.max_tokens_per_device > least:
        yield {"batch.max_tokens_per_device": least}
    if plan.stages[0].phases:
        if not config.trainer.offload:
            yield {"trainer.offload": True}
        crowded = any(check.phase == "rollout" and not check.fits for check in plan.checks) and not config.rollout.cache_bytes
        for share in (0.7, 0.6, 0.5, 0.4, 0.3):
            if crowded and share < config.rollout.memory_share:
                yield {"rollout.memory_share": share}
        if not config.optimizer.on_cpu:
            yield {"optimizer.on_cpu": True}
    else:  # on CPU a generator without this setting takes a share of the whole host, each of them
        wave = config.rollout.max_num_seqs * (plan.generator.of_token * model_len(config) + plan.generator.of_sequence)
        for cache in (-(-wave >> 20) + 1 << 20, 64 << 20):
            if not 0 < config.rollout.cache_bytes <= cache:
                yield {"rollout.cache_bytes": cache}
    for key in ("ep", "pp", "tp", "cp"):
        yield {f"parallel.{key}": 2 * getattr(parallel, key)}
    for key in ("ep", "pp"):
        yield {f"parallel.{key}": 4 * getattr(parallel, key)}
    yield {"rollout.tp": 2 * config.rollout.tp, "rollout.replicas": max(1, config.rollout.replicas // 2)}
    for factor in (2, 4):
        yield {"trainer.nnodes": factor * config.trainer.nnodes}


def as_overrides(change: Change) -> str:
    """As typed behind a command."""
    return " ".join(f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in change.items())
