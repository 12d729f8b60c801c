"""A run whose trainers, generators and graders only remember what they were asked: for tests of the loop itself."""

import threading
from types import SimpleNamespace

import numpy as np

from tandem.config.load import load
from tandem.config.schema import Config
from tandem.data.types import Prompt, Row
from tandem.rewards.types import Grade
from tandem.rollout.types import Completion
from tandem.run.ahead import Batch
from tandem.run.run import Run
from tandem.run.tracker import Tracker

GENERATOR_LOGPROB, TRAINER_LOGPROB, REFERENCE_LOGPROB = -1.0, -1.125, -1.5


class Trainers:
    """Scores are constants; `update_ok` and other metrics of the next updates come from `results`."""

    def __init__(self, config: Config):
        self.config = config
        self.calls, self.updates, self.results = [], [], []
        self.lock = threading.RLock()

    def scores(self, sequences, *, temperature, reference=False):
        self.calls.append("reference" if reference else "old")
        value = REFERENCE_LOGPROB if reference else TRAINER_LOGPROB
        return [(np.full(len(s.response_ids), value, np.float32), None) for s in sequences]

    def update(self, sequences, *, lr, kl_coef):
        self.calls.append("update")
        self.updates.append((sequences, kl_coef))
        usual = {"update_ok": 1.0, "grad_norm": 1.0, "kl/old": 0.0, "kl/old_k1": 0.0}
        usual |= {"kl/ref": 0.5} if self.config.algorithm.kl.where == "loss" else {}
        return usual | {"ratio/log_abs_mean": 0.0, "ratio/abs_diff_mean": 0.0} | (self.results.pop(0) if self.results else {})

    def memory(self):
        return {}


class FakeRun(Run):
    """Batches are lists of groups, a group being the rewards of its samples; what a sample earns is written in its text."""

    def __init__(self, tmp_path, batches: list[list[list[float]]], *overrides: str, lengths: int | list[int] = 3):
        size = f"data.train_batch_size={len(batches[0])}"
        config: Config = load(
            "demo", [size, f"rollout.n={len(batches[0][0])}", "trainer.total_steps=9", "reward.format_weight=0", *overrides]
        )
        super().__init__(config, tmp_path, Tracker(tmp_path))
        self.batches, self.lengths, self.version, self.saved = iter(batches), lengths, 0, []
        self.trainers = Trainers(config)
        self.generators = SimpleNamespace(sleep=lambda: self.trainers.calls.append("sleep"))
        self.graders = SimpleNamespace(grade=lambda items, on_progress: [Grade(float(item.text), 1.0, "correct") for item in items])
        self.builder = SimpleNamespace(token_texts=lambda ids: ["?"] * len(ids))
        self.num_prompts = 0
        self.loader_state = {"position": 0}

    def next_batch(self, step):
        self.trainers.calls.append("rollout")
        groups = next(self.batches)
        prompts = [self.prompt() for _ in groups]
        completions = [[self.completion(str(reward), number) for number, reward in enumerate(group)] for group in groups]
        greedy = [self.completion("0.25", 0) for _ in groups] if self.config.algorithm.advantage == "remax" else []
        return Batch(prompts, completions, {"position": 0}, greedy)

    def prompt(self) -> Prompt:
        self.num_prompts += 1
        row = Row(f"rows:{self.num_prompts}", "test", [{"role": "user", "content": "?"}], [], "1", {})
        return Prompt(row, np.zeros(2, np.int64), np.zeros((3, 2), np.int64), 2, None, None, "")

    def completion(self, text: str, number: int) -> Completion:
        length = self.lengths if isinstance(self.lengths, int) else self.lengths[number]
        reason = "length" if length == self.config.data.max_response_length else "stop"
        return Completion(np.zeros(length, np.int64), np.full(length, GENERATOR_LOGPROB, np.float32), text, reason, 0)

    def publish(self, version):
        return {}

    def save(self, step, *, wait=False):
        self.saved.append(step)
        return self.run_dir / "checkpoints" / f"step_{step:06d}"
