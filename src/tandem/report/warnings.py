"""What in a run's figures deserves a look, in words."""

from collections.abc import Callable, Sequence
from typing import Any

from tandem.report.runs import Metrics, RunFolder

Rule = tuple[str, Callable[[Metrics], bool], str]


def warnings_of(run: RunFolder) -> list[dict[str, Any]]:
    """{"text", "steps": first and last, "count"} of each rule that some step breaks, in the rules' order."""
    return [
        {"text": text, "steps": [steps[0], steps[-1]], "count": len(steps), "metric": metric}
        for metric, is_bad, text in rules(run.settings)
        if (steps := _steps(run.metrics, metric, is_bad))
    ]


def steps_with_warnings(run: RunFolder) -> set[int]:
    return {step for warning in warnings_of(run) for step in warning["steps"]}


def rules(settings: dict[str, Any]) -> list[Rule]:
    limit = settings.get("fidelity.max_logprob_abs_diff_mean") or 0.0
    return [
        ("nonfinite", lambda row: _of(row, "nonfinite") > 0, "A figure was not a finite number."),
        ("update/num_skipped", lambda row: _of(row, "update/num_skipped") > 0, "An update was skipped: its gradients were not finite."),
        (
            "fidelity/logprob_abs_diff_mean",
            lambda row: bool(limit) and _of(row, "fidelity/logprob_abs_diff_mean") > limit / 2,
            f"Trainer and generator differ by more than half of the limit of {limit:g} at which the run stops.",
        ),
        (
            "reward/mixed_groups",
            lambda row: row.get("reward/mixed_groups") == 0,
            "No prompt had samples of different rewards: nothing to learn from.",
        ),
        ("grade/timeout_share", lambda row: _of(row, "grade/timeout_share") > 0, "Grading some responses took too long; they earned 0."),
        (
            "response_length/clipped_share",
            lambda row: _of(row, "response_length/clipped_share") > 0.5,
            "More than half of the responses were cut off at data.max_response_length.",
        ),
        (
            "dynamic_sampling/num_filled",
            lambda row: _of(row, "dynamic_sampling/num_filled") > 0,
            "Too few prompts had samples of different rewards; others filled the batch.",
        ),
    ]


def _of(row: Metrics, name: str) -> float:
    return row.get(name) or 0.0


def _steps(rows: Sequence[Metrics], metric: str, is_bad: Callable[[Metrics], bool]) -> list[int]:
    return [int(row.get("step") or 0) for row in rows if metric in row and is_bad(row)]
