"""The plan that every training run makes first, and what of it other runs need."""

from typing import Any

from tandem.config.schema import Config
from tandem.errors import UserError
from tandem.plan.advice import as_overrides, smallest_change
from tandem.plan.plan import Plan, as_machine, legal_shapes, make_plan
from tandem.plan.report import plan_json
from tandem.plan.shapes import is_known
from tandem.plan.show import size


def plan_before_run(config: Config, memory_bytes: int, peak_flops: float = 0.0) -> dict[str, Any] | None:
    """The plan of a run that is about to start, as JSON; None when the model's sizes are known only after it has been fetched.

    Args:
        memory_bytes: of one device, on CPU of this machine; the settings' own figures come first.
        peak_flops: of one device; 0: not known.

    Raises:
        UserError: it does not fit, or the layout is illegal; says the smallest change that helps.
    """
    if not is_known(config.model, config.prepare):
        return None
    shapes, broken = legal_shapes(config)
    if broken:
        raise broken[0]
    on_cpu = config.device == "cpu"
    made = make_plan(config, shapes, as_machine(config, *((0, memory_bytes) if on_cpu else (memory_bytes, 0)), peak_flops))
    if made.fits is False:
        raise does_not_fit(made)
    return plan_json(made, None)


def check_sizes(config: Config) -> None:
    """Raises UserError for the first size that the model cannot be cut by, where its own sizes are known: of a run that makes no plan."""
    if is_known(config.model, config.prepare):
        _, broken = legal_shapes(config)
        if broken:
            raise broken[0]


def does_not_fit(made: Plan) -> UserError:
    worst = max((check for check in made.checks if not check.fits), key=lambda check: check.needed / max(1, check.available))
    change = smallest_change(made)
    return UserError(
        f"the run does not fit: {worst.place}, {worst.phase}: {size(worst.needed)} of {size(worst.available)}",
        worst.why or "weights, gradients, optimizer, activations and generator are counted; `tandem plan` with the same words shows them",
        f"set {as_overrides(change)}" if change else "use more or larger devices, or shorter sequences",
    )
