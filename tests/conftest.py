"""Fixtures shared by the tests: a tiny model folder and prompts made with its own processor, once a session."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import hypothesis
import pytest

from tests.examples import make_sequences, write_tiny_model

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job, and so every process of these tests, starts deaf to it
hypothesis.settings.register_profile("tandem", deadline=None, derandomize=True)  # a busy machine is slow, and CI repeats what it did
hypothesis.settings.load_profile("tandem")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A random Qwen3.5-MoE of every layer kind, heads and experts enough to split, as a Hugging Face folder."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "test")


@pytest.fixture(scope="session")
def sequences(tiny_model) -> list:
    return make_sequences(tiny_model)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rooms whose tests start Ray come last: they are slow, and what Ray leaves to this process as zombies is no child of other tests."""
    items.sort(key=lambda item: item.path.parent.name in ("actors", "run"))
