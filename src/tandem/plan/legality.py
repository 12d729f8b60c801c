"""Every rule that a recipe breaks, each with its reason and the nearest legal value, instead of the first one only."""

import re
from collections.abc import Callable
from typing import Any

from tandem.config import checks
from tandem.config.layout import check_layout
from tandem.config.schema import Config, ParallelConfig
from tandem.errors import UserError

# Rules that have no answer while another is broken.
_NEEDS = {checks.batches_divide_over_data_parallel_ranks: checks.world_divides_into_model_copies}


def broken_rules(config: Config, model: dict[str, Any]) -> list[UserError]:
    """Args: model: the model's config.json."""
    broken: dict[Callable[..., None], UserError] = {}
    for rule in checks.RULES:
        if _NEEDS.get(rule) not in broken and (error := _caught(rule, config)):
            broken[rule] = error
    return [*broken.values(), *_broken_by_model(config.parallel, model), *_generator_rules(config, model)]


def _caught(rule: Callable[..., None], *arguments: Any) -> UserError | None:
    try:
        rule(*arguments)
    except UserError as error:
        return error
    return None


def _broken_by_model(parallel: ParallelConfig, model: dict[str, Any]) -> list[UserError]:
    """`check_layout` stops at the first rule: ask again with its own fix applied, until it is content."""
    found: list[UserError] = []
    while error := _caught(check_layout, model["text_config"], parallel, model.get("vision_config")):
        found.append(error)
        key, value = re.findall(r"parallel\.(\w+)(?:=(\d+))?", error.fix)[0]
        parallel = parallel.model_copy(update={key: int(value) if value else None})
    return found


def _generator_rules(config: Config, model: dict[str, Any]) -> list[UserError]:
    """What vLLM divides among the devices of a generator."""
    tp, text, found = config.rollout.tp, model["text_config"], []
    for name in ("num_attention_heads", "linear_num_key_heads", "linear_num_value_heads"):
        heads = text.get(name) or tp
        if heads % tp:
            legal = max(d for d in range(1, tp + 1) if heads % d == 0)
            found.append(
                UserError(
                    f"rollout.tp = {tp} does not divide the model's {name} = {heads}", "every generator rank holds an equal part",
                    f"set rollout.tp={legal}",
                )
            )  # fmt: skip
    kv = text.get("num_key_value_heads") or tp
    if max(tp, kv) % min(tp, kv):
        found.append(
            UserError(
                f"rollout.tp = {tp} with {kv} key-value heads", "one must divide the other: heads are cut or copied", f"set rollout.tp={kv}"
            )
        )
    return found
