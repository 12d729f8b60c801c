"""What graded samples of held-out rows say: estimates over rows and by source, and a line for each row."""

from collections.abc import Iterable
from typing import Any

from tandem.algorithms.estimates import Estimate, Samples, estimates
from tandem.run.samples import Sample


def by_source(samples: Iterable[Sample]) -> dict[str, dict[str, Estimate]]:
    """Estimates over `all` rows, and, where there are several sources, of each."""
    groups: dict[str, list[Samples]] = {"all": []}
    for of_row in _by_row(samples).values():
        one = Samples([s.accuracy for s in of_row], [s.answer for s in of_row])
        groups["all"].append(one)
        source = of_row[0].prompt.row.data_source or "(none)"
        groups.setdefault("all (source)" if source == "all" else source, []).append(one)
    several = len(groups) > 2
    return {source: estimates(some) for source, some in sorted(groups.items()) if several or source == "all"}


def validation_metrics(samples: list[Sample]) -> dict[str, float]:
    """`val/pass_at_k`, `val/maj_at_n`, and the ends of the interval of the accuracy."""
    found = by_source(samples)["all"]
    name, accuracy = next(iter(found.items()))
    metrics = {f"val/{other}": estimate.value for other, estimate in found.items() if other not in (name, "pass_at_1")}
    if accuracy.low is not None and accuracy.high is not None:
        metrics |= {"val/accuracy_low": accuracy.low, "val/accuracy_high": accuracy.high}
    return metrics


def rows_of(samples: Iterable[Sample]) -> Iterable[dict[str, Any]]:
    """A line for each row: its question, its truth, and every sample with the parts of its reward and the grader's reason."""
    for row_id, of_row in _by_row(samples).items():
        row = of_row[0].prompt.row
        yield {
            "row": row_id,
            "source": row.data_source,
            "prompt": row.messages[-1]["content"],
            "ground_truth": row.ground_truth,
            "samples": [_told(sample) for sample in of_row],
        }


def _by_row(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    rows: dict[str, list[Sample]] = {}
    for sample in samples:
        rows.setdefault(sample.prompt.row.id, []).append(sample)
    return rows


def _told(sample: Sample) -> dict[str, Any]:
    return {
        "text": sample.text,
        "answer": sample.answer,
        "reward": sample.reward,
        "accuracy": sample.accuracy,
        "format": sample.format,
        "also": sample.also,
        "length_penalty": sample.length_penalty,
        "reason": sample.reason,
        "num_tokens": len(sample.completion.token_ids),
        "finish_reason": sample.completion.finish_reason,
    }
