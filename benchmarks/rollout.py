"""How fast does our generator sample beside bare vLLM, and what does generating one step ahead save?

    python benchmarks/rollout.py [--json FILE] [--check] [--quick] [--threads N] [key=value ...]

Two engines with the same settings, each in its own process, get the same prompts, seeds and sampling settings in turn: ours through the
run's `GeneratorGroup` (Ray, dealing out, watching, checks of every sample, texts), the other a bare `vllm.LLM` in its process, with
everything converted beforehand: requests in, steps until it is idle. (`LLM.generate` would run the image processor for every sample, and
drops the images of prompts that are processed already.) Both must give the same tokens; every response has its full length. Which engine is
first changes from turn to turn; caches are dropped before each. Tokens a second are medians, the ratio is the median over turns; `--check`
exits 1 when it is below 0.95.

Then the demo, a few steps each: in turn (`rollout.max_staleness=0`) and one step off policy (1), both with `rollout.placement=split`. On
two cores that both are busy anyway the second has nothing to gain; with devices of their own it does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from tandem.config.load import load
from tandem.config.schema import Config
from tandem.track.metrics import read_metrics

MIN_RATIO = 0.95
FIRST_STEPS = 2  # of a run: not counted


class BareVllm:
    """`vllm.LLM` and nothing of ours but the arguments it is started with."""

    def __init__(self, config: Config, model_path: str, banned: list[int], stops: list[int]):
        from tandem.rollout.engine import engine_arguments, engine_environment

        os.environ.update(engine_environment(config.rollout, "cpu"))
        from vllm import LLM

        self.max_model_len = config.data.max_prompt_length + config.data.max_response_length
        arguments = engine_arguments(model_path, config.rollout, config.model.dtype, self.max_model_len, config.trainer.seed, "cpu")
        self.llm, self.banned, self.stops = LLM(**arguments), banned, stops

    def prepare(self, requests: list) -> None:
        from tandem.rollout.inputs import engine_input, sampling_params

        hf_config = self.llm.model_config.hf_config
        self.prompts, self.params = [], []
        for request in requests:
            prompt = engine_input(request.prompt, hf_config.image_token_id, hf_config.vision_config.spatial_merge_size)
            for j in range(request.sampling.num_samples):
                limits = {"max_model_len": self.max_model_len, "banned_token_ids": self.banned, "stop_token_ids": self.stops}
                self.prompts.append(prompt)
                self.params.append(sampling_params(request, j, **limits))

    def forget(self) -> None:
        self.llm.reset_prefix_cache()
        self.llm.llm_engine.reset_encoder_cache()

    def generate(self) -> tuple[float, list[list[int]]]:
        """Seconds and the tokens of each sample."""
        began, engine, outputs = time.perf_counter(), self.llm.llm_engine, {}
        for i, (prompt, params) in enumerate(zip(self.prompts, self.params)):
            engine.add_request(str(i), prompt, params)
        while engine.has_unfinished_requests():
            outputs |= {int(output.request_id): output for output in engine.step() if output.finished}
        return time.perf_counter() - began, [list(outputs[i].outputs[0].token_ids) for i in range(len(outputs))]


def compare_engines(config: Config, num_prompts: int, num_turns: int, folder: Path) -> dict:
    import ray

    from tandem.actors import cluster
    from tandem.devices import cpu
    from tandem.rollout.types import SamplingParams, requests_of
    from tandem.run import assemble
    from tandem.run.tracker import Tracker

    cluster.start(config, cpu)
    run = assemble.assemble(config, cpu, "eval", folder, Tracker(folder))
    try:
        prompts = run.val_prompts[:num_prompts]
        sampling = SamplingParams(config.rollout.n, max_tokens=config.data.max_response_length, seed=7)
        model_path, banned, _ = run.generators._start_arguments
        bare = ray.remote(num_cpus=0)(BareVllm).remote(config, model_path, banned, [])
        ray.get(bare.prepare.remote(requests_of(prompts, sampling)))
        replica, seconds = run.generators.replicas[0], {"ours": list[float](), "bare": list[float]()}
        ray.get(replica.actor.__ray_call__.remote(without_stops))
        for turn in range(num_turns + 1):
            tokens = {}
            for which in ("ours", "bare") if turn % 2 else ("bare", "ours"):
                ray.get([bare.forget.remote(), replica.actor.__ray_call__.remote(lambda self: self.engine.reset_caches())])
                if which == "bare":
                    took, tokens[which] = ray.get(bare.generate.remote())
                else:
                    began = time.perf_counter()
                    completions = run.generators.generate(prompts, sampling)
                    took = time.perf_counter() - began
                    tokens[which] = [sample.token_ids.tolist() for samples in completions for sample in samples]
                if turn:  # the first is to warm up
                    seconds[which].append(took)
            assert tokens["ours"] == tokens["bare"], "the two did not do the same work"
    finally:
        run.close()
        ray.shutdown()
    num_tokens = sum(map(len, tokens["ours"]))
    ours, theirs = (num_tokens / statistics.median(seconds[which]) for which in ("ours", "bare"))
    ratios = [theirs_s / ours_s for ours_s, theirs_s in zip(seconds["ours"], seconds["bare"])]
    return {
        "tokens_per_s": ours,
        "tokens_per_s_bare_vllm": theirs,
        "ratio": statistics.median(ratios),
        "num_tokens": num_tokens,
    }


def without_stops(self) -> None:
    """Every response gets its full length: the work is then the same from turn to turn and from model to model."""
    self.engine._stop = []


def step_seconds(folder: Path, max_staleness: int, num_steps: int, overrides: list[str]) -> float:
    settings = ["rollout.placement=split", f"rollout.max_staleness={max_staleness}", f"trainer.total_steps={FIRST_STEPS + num_steps}"]
    settings += [
        "trainer.test_freq=0",
        "trainer.val_before_train=false",
        "data.val_max_rows=4",
        "warm_start.max_steps=5",
        "rollout.replicas=1",
    ]
    settings += ["trainer.devices_per_node=1", f"run_dir={folder}"]
    subprocess.run([sys.executable, "-m", "tandem", "demo", *settings, *overrides, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    rows = [row["time/step_s"] for row in read_metrics(folder) if "time/step_s" in row]
    return statistics.median(rows[FIRST_STEPS:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help=f"exit 1 when the ratio is below {MIN_RATIO}")
    parser.add_argument("--quick", action="store_true", help="fewer prompts, turns and steps")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each engine")
    arguments, overrides = parser.parse_known_args()
    num_prompts, num_turns, num_steps = (8, 3, 4) if arguments.quick else (32, 15, 10)
    settings = ["rollout.replicas=1", f"rollout.num_threads={arguments.threads}", "data.max_response_length=48", "data.val_max_rows=64"]
    with tempfile.TemporaryDirectory(prefix="tandem-rollout-") as folder:
        run_dir = Path(folder) / "engines"
        run_dir.mkdir()
        config = load("demo", [*settings, f"run_dir={run_dir}", *overrides]).model_copy(update={"device": "cpu"})
        result = compare_engines(config, num_prompts, num_turns, run_dir) | {"num_threads": arguments.threads}
        taken: dict[int, list[float]] = {0: [], 1: []}
        for turn in range(1 if arguments.quick else 2):
            for max_staleness in (0, 1) if turn == 0 else (1, 0):
                folder_of_turn = Path(folder) / f"{turn}-{max_staleness}"
                taken[max_staleness].append(step_seconds(folder_of_turn, max_staleness, num_steps, overrides))
    result |= {"step_s_in_turn": statistics.mean(taken[0]), "step_s_one_step_off": statistics.mean(taken[1])}
    table = Table("what", "value")
    for name, value in result.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    return int(arguments.check and result["ratio"] < MIN_RATIO)


if __name__ == "__main__":
    sys.exit(main())
