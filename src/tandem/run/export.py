"""Put the ranks' shares together as an ordinary Hugging Face folder, and read it again."""

import json
import os
import shutil
from pathlib import Path

from safetensors import safe_open

from tandem.errors import RunError
from tandem.run.groups import TrainGroup

INDEX = "model.safetensors.index.json"


def export(trainers: TrainGroup, source: Path, target: Path) -> Path:
    """Write `target`: weights, index, and every other file of the start model's folder (config, tokenizer, processor, template).

    Raises:
        RunError: what was written does not hold every tensor that the index names.
    """
    beside = target.with_name(target.name + ".tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and file.name != INDEX:
            shutil.copyfile(file, beside / file.name)
    file_of = trainers.export(str(beside))
    files = sorted(set(file_of.values()))
    names = {file: f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i, file in enumerate(files)}
    for file, name in names.items():
        os.rename(beside / file, beside / name)
    weight_map = {tensor: names[file] for tensor, file in sorted(file_of.items())}
    total = sum((beside / name).stat().st_size for name in names.values())
    (beside / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1))
    _verify(beside, weight_map)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(beside, target)
    return target


def _verify(folder: Path, weight_map: dict[str, str]) -> None:
    found = {}
    for name in sorted(set(weight_map.values())):
        with safe_open(folder / name, "pt") as file:
            found.update(dict.fromkeys(file.keys(), name))
    if found != weight_map:
        wrong = sorted(set(found.items()) ^ set(weight_map.items()))[:5]
        raise RunError(
            f"the export in {folder} does not hold what its index says: {wrong}",
            "a file was lost while writing",
            "check the disk and export again",
        )
