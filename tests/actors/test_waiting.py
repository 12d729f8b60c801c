"""What is told of an actor that failed, phase by phase, without actors."""

import pytest
import ray
import torch
from ray.exceptions import RayTaskError

from tandem.actors.waiting import wait
from tandem.config.keys import SETTINGS
from tandem.errors import RunError, UserError

PHASES = (
    "loading the model",
    "making the optimizer",
    "scoring",
    "the update",
    "loading the checkpoint",
    "copying what is saved",
    "exporting",
)
OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...\nmore"),
    RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; ...)"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
    ),
    MemoryError("Unable to allocate 8.00 GiB for an array"),
)


def fail(monkeypatch, cause: Exception, what: str) -> RunError:
    def get(futures, timeout):
        raise RayTaskError("TrainRank.update", "Traceback ...", cause)

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(RunError) as told:
        wait([], 1.0, what)
    return told.value


@pytest.mark.parametrize("cause", OUT_OF_MEMORY, ids=lambda cause: type(cause).__name__)
def test_out_of_memory_names_its_phase_and_settings_that_need_less(cause, monkeypatch):
    for what in PHASES:
        told = fail(monkeypatch, cause, what)
        assert told.what == f"{what} ran out of memory" and told.why == str(cause).splitlines()[0]
        named = [key for key in SETTINGS if key in told.fix]
        assert {"trainer.recompute", "batch.max_tokens_per_device", "trainer.offload", "optimizer.on_cpu"} <= set(named)


def test_another_error_is_not_called_out_of_memory(monkeypatch):
    assert fail(monkeypatch, RuntimeError("shapes differ"), "the update").what == "the update failed: RuntimeError: shapes differ"


def test_a_full_disk_under_an_actor_is_told_as_one(monkeypatch):
    told = fail(monkeypatch, OSError(28, "No space left on device", "/runs/x/logs/rank.log"), "starting the generators")
    assert told.what == "starting the generators: a file could not be written"
    assert "No space left on device: '/runs/x/logs/rank.log'" in told.why and "make room" in told.fix


def test_progress_counts_what_is_there_and_a_failure_does_not_wait_for_the_slowest(monkeypatch):
    told, ends_when_ready = [], ["b", "a", "never"]

    def get(futures, timeout=None):
        assert "never" not in futures, "it waited for one that does not end"
        if "a" in futures:
            raise RayTaskError("Generator.start", "Traceback ...", UserError("vLLM refuses to start", "no memory", "less"))
        return list(futures)

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda futures, num_returns, timeout: (ends_when_ready[:num_returns], ends_when_ready[num_returns:]))
    with pytest.raises(UserError, match="refuses to start"):
        wait(["a", "b", "never"], 9.0, "starting the generators", lambda done, total: told.append((done, total)))
    assert told == [(1, 3)]
