"""Folders of runs for the report: a small real one, and made ones of any size with given texts."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tandem.config.load import load
from tandem.track.metrics import MetricsLog
from tandem.track.notes import append_note
from tandem.track.rollouts import write_rollouts

REAL_RUN = Path(__file__).parent / "real_run"  # eight steps of the demo on sixteen rows, without its weights


def real_run(folder: Path, name: str = "real") -> Path:
    """A copy that may be written to."""
    return Path(shutil.copytree(REAL_RUN, folder / name))


def made_run(folder: Path, num_steps: int = 4, num_groups: int = 3, num_samples: int = 2, length: int = 6, **texts: str) -> Path:
    """Rows `rows:0`, `rows:1`, ... in turn. `texts` replace row_id, data_source, prompt_text, response_text, grade_reason, ..."""
    log = MetricsLog(folder)
    random = np.random.default_rng(0)
    for step in range(1, num_steps + 1):
        log.append(
            {"step": step, "reward/mean": 0.1 * step, "fidelity/logprob_abs_diff_mean": 1e-6, "time/rollout_s": 1.0, "time/step_s": 2.0}
        )
        write_step(folder, step, num_groups, num_samples, length, random, **texts)
    config = load("demo", [f"run_dir={folder.name}"], env={}).model_dump(mode="json")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    append_note(folder, texts.get("note", "a note"))
    return folder


def write_step(folder: Path, step: int, num_groups: int, num_samples: int, length: int, random, **texts: str) -> None:
    rows = []
    for group in range(num_groups):
        row = f"rows:{(step * num_groups + group) % (3 * num_groups)}"
        rows += [sample_row(row, group, number, length, random, **texts) for number in range(num_samples)]
    write_rollouts(folder, step, rows)


def sample_row(row: str, group: int, number: int, length: int, random, **texts: str) -> dict[str, Any]:
    logprobs = -random.random(length).astype(np.float32)
    right = bool(random.random() < 0.5)
    words = [f" w{random.integers(1000)}" for _ in range(length)]
    made = {
        "row_id": row, "data_source": "made", "group": group, "sample": number, "prompt_text": f"What is {row}?",
        "prompt_rendered": f"<|im_start|>user\nWhat is {row}?", "prompt_tokens": 9, "images": [], "ground_truth": "4",
        "response_text": "".join(words) + f"\\boxed{{{int(random.integers(9))}}}", "token_ids": list(range(length)), "token_texts": words,
        "logprobs_rollout": logprobs, "logprobs_train": logprobs + 10.0 ** random.uniform(-7, -3, length).astype(np.float32),
        "reward": float(right), "accuracy": float(right), "format": 1.0, "also": [], "length_penalty": 0.0, "kl_penalty": 0.0,
        "advantage": 0.5 if right else -0.5, "finish_reason": "stop", "version": 1, "grade_reason": "correct" if right else "wrong",
    }  # fmt: skip
    return made | {name: text for name, text in texts.items() if name in made}


def embedded_data(page: str) -> dict[str, Any]:
    """The JSON block of a page, found by plain text search."""
    start = page.index('id="data">') + len('id="data">')
    return json.loads(page[start : page.index("</script>", start)])
