"""A run's samples for the page: whole groups, spread over the steps, within a budget of samples and bytes."""

from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.report.images import Pictures
from tandem.report.runs import RunFolder
from tandem.rewards.extract import said_answer
from tandem.track.rollouts import as_rows, logprob_differences, num_rollouts, read_table

FEWEST_GROUPS = 4  # of a step that is shown: the worst fidelity, the highest and the lowest reward, and one more
NOT_FINITE = 1e9  # a difference that is no finite number counts as this
LONGEST_TOKEN = 255  # characters of one token's text that are kept: its length is a byte on the page


@dataclass(frozen=True)
class Budget:
    """What one run's samples may take on a page."""

    num_samples: int = 5000
    text_bytes: int = 24 << 20
    image_bytes: int = 8 << 20


def rollouts_of(run: RunFolder, budget: Budget, important: Collection[int] = (), only: Collection[int] | None = None) -> dict[str, Any]:
    """`rows` by id, `groups` in order of steps, `images` by name, and how many samples there are in all.

    Args:
        important: steps that are shown if there is a file of them.
        only: of these steps; None: of all.
    """
    files = {step: path for step, path in run.rollouts.items() if only is None or step in only}
    tables = _tables(files, budget, important)
    rows: dict[str, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    pictures = Pictures(run.path, budget.image_bytes)
    for path, most_groups, most_bytes in tables:
        table = read_table(path)
        for group in _groups(table, most_groups, most_bytes, rows.keys()):
            first = group[0]
            groups.append({"step": first["step"], "row": first["row_id"], "number": first["group"], "samples": [_sample(s) for s in group]})
            rows.setdefault(first["row_id"], _row(first, pictures))
    return {
        "num_samples": sum(map(num_rollouts, files.values())),
        "num_steps": len(files),
        "rows": rows,
        "groups": groups,
        "images": pictures.data_urls,
    }


def _tables(files: dict[int, Path], budget: Budget, important: Collection[int]) -> list[tuple[Path, int, int]]:
    """(file, most groups, most bytes of text) of each step that is shown."""
    if not files:
        return []
    first = read_table(next(iter(files.values())), ["sample"])["sample"].to_pylist()
    num_samples = max([1, *(number + 1 for number in first)])  # of a prompt
    num_steps = max(1, min(len(files), budget.num_samples // (FEWEST_GROUPS * num_samples)))
    steps = spread(list(files), num_steps, important)
    most_groups = max(1, budget.num_samples // (len(steps) * num_samples))
    return [(files[step], most_groups, budget.text_bytes // len(steps)) for step in steps]


def spread(steps: Sequence[int], count: int, important: Collection[int] = ()) -> list[int]:
    """At most `count` of `steps`: the first and the last, those that are important, and others evenly between."""
    if len(steps) <= count:
        return list(steps)
    chosen = [steps[-1], steps[0], *(step for step in steps if step in important)][:count]
    even = [steps[round(place)] for place in np.linspace(0, len(steps) - 1, count)]
    chosen += [step for step in even if step not in chosen]
    return sorted(list(dict.fromkeys(chosen))[:count])


def _groups(table: pa.Table, most: int, most_bytes: int, known: Collection[str]) -> list[list[dict[str, Any]]]:
    """The chosen groups of a step in its order, each a list of samples with the mean |Δ log-prob| and all of them added."""
    light = as_rows(table.select(["row_id", "group", "sample", "reward", "response_text"]))
    differences = logprob_differences(table)
    places: dict[Any, list[int]] = {}
    for place, row in enumerate(light):
        if row["group"] is None and row["sample"] == 0:  # of a version that wrote no groups: samples stand in order
            places[len(places), "?"] = [place]
        else:
            key = row["group"] if row["group"] is not None else next(reversed(places))
            places.setdefault(key, []).append(place)
    chosen: list[list[int]] = []
    for group in _by_interest(list(places.values()), light, differences, known)[:most]:
        size = 3 * sum(len(light[place]["response_text"]) for place in group)  # the text twice, and two bytes a token
        if most_bytes < size and chosen:
            break
        most_bytes -= size
        chosen.append(group)
    flat = [place for group in sorted(chosen) for place in group]
    full = as_rows(table.take(flat))
    for place, row in zip(flat, full):
        row["difference"] = differences[place]
    taken = iter(full)
    return [[next(taken) for _ in group] for group in sorted(chosen)]


def _by_interest(
    groups: list[list[int]], rows: list[dict[str, Any]], differences: list[np.ndarray | None], known: Collection[str]
) -> list[list[int]]:
    """The groups, first those that a person would ask for."""
    reward = [float(np.mean([rows[place]["reward"] for place in group])) for group in groups]
    fidelity = [float(np.nan_to_num(d.mean(), nan=NOT_FINITE)) if d is not None and len(d) else 0.0 for d in differences]
    worst = [max(fidelity[place] for place in group) for group in groups]
    numbers = range(len(groups))
    first = [max(numbers, key=worst.__getitem__), max(numbers, key=reward.__getitem__), min(numbers, key=reward.__getitem__)]
    seen = [number for number in numbers if rows[groups[number][0]]["row_id"] in known]  # how its answers changed can be told
    return [groups[number] for number in dict.fromkeys([*first, *seen, *numbers])]


def _row(first: dict[str, Any], pictures: Pictures) -> dict[str, Any]:
    return {
        "source": first["data_source"],
        "prompt": first["prompt_text"],
        "rendered": first["prompt_rendered"],
        "tokens": first["prompt_tokens"],
        "truth": first["ground_truth"],
        "images": [name if name and pictures.take(name) else None for name in first["images"] or []],
    }


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    parts = {"accuracy": row["accuracy"], "format": row["format"], **row["also"]}
    parts |= {name: row[name] for name in ("length_penalty", "kl_penalty") if row[name]}
    sample = {
        "number": row["sample"],
        "text": row["response_text"],
        "answer": said_answer(row["response_text"] or ""),
        "reward": row["reward"],
        "advantage": row["advantage"],
        "parts": {name: value for name, value in parts.items() if value is not None},
        "reason": row["grade_reason"],
        "finish": row["finish_reason"],
        "version": row["version"],
        "length": len(row["token_ids"]),
    }
    return sample | _tokens(row) | _fidelity(row["difference"])


def _tokens(row: dict[str, Any]) -> dict[str, Any]:
    """`tokens`: all texts in one, `lengths`: the UTF-16 length of each as a byte."""
    if row["token_texts"] is None:
        return {}
    texts = [text if len(text) <= LONGEST_TOKEN // 2 else text[: LONGEST_TOKEN // 2] for text in row["token_texts"]]
    lengths = bytes(len(text.encode("utf-16-le", "surrogatepass")) // 2 for text in texts)
    return {"tokens": "".join(texts), "lengths": b64encode(lengths).decode()}


def _fidelity(difference_R: np.ndarray | None) -> dict[str, Any]:
    """`levels`: |Δ log-prob| of each token as a byte; `fidelity`: their mean; `worst`: place and size of the largest."""
    if difference_R is None or not len(difference_R):
        return {}
    finite_R = np.nan_to_num(difference_R.astype(np.float64), nan=NOT_FINITE, posinf=NOT_FINITE)
    worst = int(finite_R.argmax())
    return {
        "levels": b64encode(levels(finite_R).tobytes()).decode(),
        "fidelity": float(finite_R.mean()),
        "worst": [worst, float(finite_R[worst])],
    }


def levels(difference_R: np.ndarray) -> np.ndarray:
    """[R] uint8: 25.5 steps a decade, 0 at 1e-8 and below, 255 at 100 and above."""
    with np.errstate(divide="ignore"):
        return np.clip(np.rint((np.log10(difference_R) + 8) * 25.5), 0, 255).astype(np.uint8)
