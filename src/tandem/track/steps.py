"""A step's metrics as a line for people."""

from collections.abc import Mapping

_STEP_LINE = (  # metric, label, format
    ("reward/mean", "reward", ".3f"),
    ("accuracy/mean", "accuracy", ".3f"),
    ("val/accuracy", "held-out", ".3f"),
    ("response_length/mean", "length", ".1f"),
    ("kl/ref", "kl", ".2e"),
    ("entropy", "entropy", ".3f"),
    ("clip_share", "clipped", ".1%"),
    ("fidelity/logprob_abs_diff_mean", "|Δlogp|", ".1e"),
    ("loss/policy", "loss", ".4f"),
    ("grad_norm", "grad", ".2f"),
    ("mfu", "mfu", ".1%"),
    ("tokens_per_s", "tokens/s", ".0f"),
    ("time/step_s", "seconds", ".1f"),
)
_MEMORY = ("memory/device_peak_bytes", "memory/host_peak_bytes")
_SHOWN = {"step", *(name for name, _, _ in _STEP_LINE), *_MEMORY}

Metrics = Mapping[str, float | None]


def step_line(metrics: Metrics) -> str:
    """The metrics that are there, `nan` for a value that was no finite number; behind the seconds those of each phase."""
    shown = [f"{label} {_number(metrics[name], spec)}" for name, label, spec in _STEP_LINE if name in metrics]
    if phases := [f"{name} {_number(value, '.1f')}" for name, value in _phases(metrics)]:
        shown.append(f"({', '.join(phases)})")
    if peaks := [_number(metrics[name] and metrics[name] / 2**30, ".1f") for name in _MEMORY if name in metrics]:
        shown.append(f"memory {'+'.join(peaks)} GiB")
    return "  ".join([f"step {metrics.get('step')}", *shown])


def other_metrics(metrics: Metrics) -> str:
    """What `step_line` leaves out, on one line; empty when it left out nothing."""
    phases = {f"time/{name}_s" for name, _ in _phases(metrics)}
    return "  ".join(f"{name} {_number(value, '.4g')}" for name, value in metrics.items() if name not in _SHOWN | phases)


def _phases(metrics: Metrics) -> list[tuple[str, float | None]]:
    names = [name for name in metrics if name.startswith("time/") and name.endswith("_s") and name != "time/step_s"]
    return [(name.removeprefix("time/").removesuffix("_s"), metrics[name]) for name in names]


def _number(value: float | None, spec: str) -> str:
    return "nan" if value is None else format(value, spec)
