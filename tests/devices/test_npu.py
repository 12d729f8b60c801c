"""The NPU path with stand-ins for torch_npu and MindSpeed that record what is called, in which order, and what was set by then."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

RECORD = "import json, os, sys\nfrom recorder import record\n"
PACKAGES = {
    "recorder.py": """
        import os
        calls = []
        def record(what, *args):
            calls.append([what, *args])
    """,
    "torch_npu/__init__.py": RECORD
    + """
record("torch_npu imported", *map(os.environ.get, ("ASCEND_RT_VISIBLE_DEVICES", "HCCL_CONNECT_TIMEOUT", "OMP_NUM_THREADS")))
from types import SimpleNamespace
npu = SimpleNamespace(
    is_available=lambda: True,
    set_device=lambda index: record("set_device", index),
    current_device=lambda: 0,
)
""",
    "mindspeed/__init__.py": "",
    "mindspeed/megatron_adaptor.py": RECORD
    + """
record("adaptor imported", "megatron.core" in sys.modules)
def repatch(arguments):
    record("repatch", arguments)
""",
    "torch_npu_without_cann/torch_npu/__init__.py": "raise ImportError('libascendcl.so: cannot open shared object file')\n",
}

START = """
import json, sys
import recorder
from tandem.config.load import load
from tandem.actors import train_rank
train_rank.claimed_devices = lambda device: ["5"]
train_rank.log_to_file = lambda path: None
config = load("qwen3_5_35b_a3b", ["device=npu", "trainer.num_threads=2"], env={})
rank = train_rank.TrainRank(config, 3, "run")
import torch
def meet(backend, **kwargs):
    recorder.record("init_process_group", backend, kwargs["rank"], kwargs["world_size"], "megatron.core" in sys.modules)
    raise KeyboardInterrupt
torch.distributed.init_process_group = meet
torch.distributed.TCPStore = lambda address, port, **kwargs: recorder.record("store", address, port, kwargs["is_master"])
try:
    rank.start("10.0.0.1", 29500, 16, "model", [])
except KeyboardInterrupt:
    sys.stdout.write(json.dumps(recorder.calls))
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    for name, code in PACKAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(code))
    return tmp_path


def run(code: str, *folders: Path, **variables: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HCCL", "ASCEND", "DEVICE"))}
    env = {**kept, "PYTHONPATH": os.pathsep.join(map(str, folders)), **variables}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)


def test_a_training_rank_sets_its_environment_then_its_device_then_patches_megatron_and_then_meets_the_others(stand_ins: Path) -> None:
    done = run(START, stand_ins, HCCL_CONNECT_TIMEOUT="900")
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout)
    assert [call[0] for call in calls] == ["torch_npu imported", "set_device", "adaptor imported", "repatch", "store", "init_process_group"]
    assert calls[0][1:] == ["5", "900", "2"], "one visible device, what the user exported, the setting's threads"
    assert calls[1][1:] == [0], "the visible device is the first of this process"
    assert calls[2][1:] == [False], "MindSpeed patches Megatron-Core while it is imported: it must come first"
    layout = {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 1,
    }
    assert layout.items() <= calls[3][1].items()
    assert (calls[3][1]["sequence_parallel"], calls[3][1]["use_flash_attn"]) == (True, True)
    assert calls[3][1]["moe_token_dispatcher_type"] == "alltoall"
    assert calls[4][1:] == ["10.0.0.1", 29500, False]
    assert calls[5][1:4] == ["hccl", 3, 16]


def test_torch_npu_without_cann_is_told_apart_from_no_torch_npu(stand_ins: Path) -> None:
    say = "import sys; from tandem.devices import npu; sys.stdout.write(npu.missing())"
    assert run(say, stand_ins, OMP_NUM_THREADS="1").stdout == ""
    assert "libascendcl.so" in (told := run(say, stand_ins / "torch_npu_without_cann").stdout)
    assert "CANN" in told
    assert run(say).stdout == "the package torch_npu is not installed"


def test_an_npu_that_torch_npu_sees_is_chosen_by_itself(stand_ins: Path) -> None:
    say = "import sys; from tandem import devices; found, why = devices.find(); sys.stdout.write(f'{found.NAME}: {why}')"
    assert run(say, stand_ins, OMP_NUM_THREADS="1").stdout == "npu: torch_npu is installed and sees a device"


def test_a_trace_is_of_host_and_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from tandem.devices import npu

    asked = []
    kinds = SimpleNamespace(CPU="host", NPU="device")
    profiler = SimpleNamespace(ProfilerActivity=kinds, profile=lambda **given: asked.append(given) or "profiler")
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(profiler=profiler))
    assert npu.profiler() == "profiler"
    assert asked == [{"activities": ["host", "device"], "record_shapes": True}]


def test_a_misspelt_device_is_told_where_the_recipe_has_decided(monkeypatch):
    from tandem import devices
    from tandem.errors import UserError

    monkeypatch.setenv("DEVICE", "tpu")
    with pytest.raises(UserError, match="unknown device 'tpu'"):
        devices.detect("cpu")
