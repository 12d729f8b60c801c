"""What was planned beside what was measured. Bytes, seconds and tokens as they are; the page writes the units."""

from statistics import median
from typing import Any

from tandem.report.runs import RunFolder
from tandem.track.summary import values_of


def measured_of(run: RunFolder) -> dict[str, Any]:
    """`rows` of {what, planned, measured, unit, about} with None where one side does not tell, and `phases`: the planned bytes of each."""
    plan, of_host = run.plan, run.plan.get("host", {})
    return {
        "rows": [row for row in _rows(run, plan) if row["planned"] is not None or row["measured"] is not None] if plan else [],
        "phases": [
            *({"place": "device", "phase": phase, "bytes": size} for phase, size in _device_bytes(plan).items()),
            *({"place": "host", "phase": phase, "bytes": memory["total"]} for phase, memory in of_host.items()),
        ],
    }


def _rows(run: RunFolder, plan: dict[str, Any]) -> list[dict[str, Any]]:
    settings, compute = run.settings, plan.get("compute", {})
    longest = (settings.get("data.max_prompt_length") or 0) + (settings.get("data.max_response_length") or 0)
    samples = (settings.get("data.train_batch_size") or 0) * (settings.get("rollout.n") or 0)
    device = max(_device_bytes(plan).values(), default=None)
    host = max((memory["total"] for memory in plan.get("host", {}).values()), default=None)
    memory, rank = "memory/device_peak_bytes", "memory/host_peak_bytes"
    tokens = [(row["tokens/prompt"] or 0) + (row.get("tokens/response") or 0) for row in run.metrics if "tokens/prompt" in row]
    return [
        _row("Memory of a device, peak", device, _most(run, memory), "bytes", "of the busiest phase; measured: of all ranks the largest"),
        _row("Memory of a node's host, peak", host, _most(run, rank), "bytes", "of all processes; measured: of the largest rank alone"),
        _row("Tokens a step", longest * samples or None, max(tokens, default=None), "tokens", "every sequence at its full length"),
        _row("Seconds a step", compute.get("seconds_at_peak"), _median(run, "time/step_s"), "s", "at the devices' peak; measured: median"),
        _row(
            "Use of the devices' peak (MFU)", compute.get("mfu_ceiling"), _median(run, "mfu"), "share", "the most that the schedule allows"
        ),
    ]


def _row(what: str, planned: float | None, measured: float | None, unit: str, about: str) -> dict[str, Any]:
    return {"what": what, "planned": planned, "measured": measured, "unit": unit, "about": about}


def _most(run: RunFolder, metric: str) -> float | None:
    return max(values_of(run.metrics, metric), default=None)


def _median(run: RunFolder, metric: str) -> float | None:
    values = values_of(run.metrics, metric)
    return median(values) if values else None


def _device_bytes(plan: dict[str, Any]) -> dict[str, int]:
    """The busiest stage's bytes in each phase; empty where devices are the host's own cores."""
    phases: dict[str, int] = {}
    for stage in plan.get("stages", []):
        for phase, memory in stage["phases"].items():
            phases[phase] = max(phases.get(phase, 0), memory["total"])
    return phases
