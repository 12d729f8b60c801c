"""The demo's parquet files, in Geo3K's processed layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandem.data.columns import written_schema
from tandem.data.demo.digits import digit_samples
from tandem.data.demo.geometry import geometry_samples
from tandem.data.demo.sample import INSTRUCTION, Sample

SIZES = {"train": (1500, 1500), "val": (90, 60), "test": (180, 120)}  # split -> digits, diagrams
SCHEMA = written_schema(("response", pa.string()))


def write_demo_data(out_dir: str | Path, seed: int = 0) -> dict[str, Path]:
    """Write train.parquet, val.parquet and test.parquet; the same seed gives the same bytes, and no image is in two of them.

    extra_info.response is a reference response for a supervised warm start.

    Returns:
        split -> file.
    """
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, samples in split_samples(seed).items():
        rows = [_record(sample, split, index) for index, sample in enumerate(samples)]
        files[split] = out / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), files[split])
    return files


def split_samples(seed: int) -> dict[str, list[Sample]]:
    """The samples of each split, digits and diagrams mixed."""
    rng = np.random.default_rng(seed)
    digits = digit_samples()
    digits = [digits[i] for i in rng.permutation(len(digits))]
    diagrams = geometry_samples(sum(count for _, count in SIZES.values()), rng)
    splits, digits_used, diagrams_used = {}, 0, 0
    for split, (num_digits, num_diagrams) in SIZES.items():
        chosen = digits[digits_used : digits_used + num_digits] + diagrams[diagrams_used : diagrams_used + num_diagrams]
        splits[split] = [chosen[i] for i in rng.permutation(len(chosen))]
        digits_used, diagrams_used = digits_used + num_digits, diagrams_used + num_diagrams
    return splits


def _record(sample: Sample, split: str, index: int) -> dict[str, Any]:
    return {
        "data_source": sample.data_source,
        "prompt": [{"role": "user", "content": f"<image>{sample.question} {INSTRUCTION}"}],
        "images": [{"bytes": sample.image, "path": None}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": sample.answer},
        "extra_info": {
            "split": split,
            "index": index,
            "answer": sample.answer,
            "question": sample.question,
            "response": sample.response,
        },
    }
