"""The real imports, each in a process of its own as in a run: right versions may still not load."""

import os
import subprocess
import sys

from tandem.devices import DEVICES, process_environment
from tandem.doctor.finding import Finding

TIMEOUT_S = 300
PARTS = {
    "trainer": """
import sys
from tandem import devices
from tandem.config.schema import ParallelConfig
devices.DEVICES[sys.argv[1]].prepare_megatron(ParallelConfig())
import megatron.core
import tandem.engine.engine
""",
    "generator": """
import vllm
from vllm import LLM, SamplingParams
from vllm.model_executor.models import ModelRegistry
assert "Qwen3_5MoeForConditionalGeneration" in ModelRegistry.get_supported_archs(), "this vLLM does not know Qwen3.5"
""",
    "cluster": "import ray",
}


def import_findings(device: str) -> list[Finding]:
    """Start all parts at once, and wait for them."""
    env = {**os.environ, **process_environment(DEVICES[device], 1)}
    processes = {
        part: subprocess.Popen([sys.executable, "-c", code, device], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
        for part, code in PARTS.items()
    }
    return [_finding(part, process) for part, process in processes.items()]


def _finding(part: str, process: subprocess.Popen) -> Finding:
    try:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Finding(
            f"import of the {part}", f"still importing after {TIMEOUT_S} s", "loads", "fault", "a library hangs", "import it by hand"
        )
    if process.returncode == 0:
        return Finding(f"import of the {part}", "loads", "loads")
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), f"ended with {process.returncode}")
    return Finding(
        f"import of the {part}",
        last,
        "loads",
        "fault",
        "a package is missing, or made for another version of its neighbours",
        "see the faults above; then `make setup`, or the image of docs/ascend.md",
    )
