"""CONTRIBUTING's examples of an advantage and a loss work as they stand: one file, one line."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.algorithms import advantages, losses, names
from tandem.algorithms.advantages import AdvantageBatch
from tandem.algorithms.losses import LossBatch
from tandem.config.schema import AlgorithmConfig

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


def added(room: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the example's file beside the others and its line into the table, as the text says."""
    [block] = [b for b in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if f"algorithms/{room}/{name}.py" in b]
    indent = len(block) - len(block.lstrip())
    (tmp_path / f"{name}.py").write_text("\n".join(line[indent:] for line in block.splitlines()))
    package = {"advantages": advantages, "losses": losses}[room]
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    [line] = re.findall(rf'`("{name}": "{name}:{name}",)`', TEXT)
    key, place = re.findall(r'"([^"]+)"', line)
    monkeypatch.setitem({"advantages": names.ADVANTAGES, "losses": names.LOSSES}[room], key, place)
    monkeypatch.delitem(sys.modules, f"tandem.algorithms.{room}.{name}", raising=False)


def test_the_example_of_an_advantage(tmp_path, monkeypatch):
    added("advantages", "median", tmp_path, monkeypatch)
    names.check_names(AlgorithmConfig(advantage="median"))
    batch = AdvantageBatch(np.array([0.0, 1.0, 5.0, 2.0, 2.0]), np.array([0, 0, 0, 1, 1]), np.ones(5, int))
    assert advantages.get("median")(batch, AlgorithmConfig()).tolist() == [-1.0, 0.0, 4.0, 0.0, 0.0]


def test_the_example_of_a_loss(tmp_path, monkeypatch):
    added("losses", "plain", tmp_path, monkeypatch)
    names.check_names(AlgorithmConfig(loss="plain"))
    logprobs = torch.tensor([-1.0, -2.0])
    batch = LossBatch(logprobs, logprobs, torch.tensor([2.0, -1.0]), torch.tensor([0, 0]), 1)
    assert losses.get("plain")(batch, AlgorithmConfig()).loss_R.tolist() == [2.0, -2.0]
