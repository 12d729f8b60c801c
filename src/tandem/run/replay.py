"""Rollouts that a run recorded, in the place of generators: `tandem debug train-only`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tandem.algorithms.advantages import GREEDY_ADVANTAGES
from tandem.config.schema import Config
from tandem.data.loader import Loader
from tandem.data.prompt_set import PromptSet
from tandem.data.types import Prompt
from tandem.errors import UserError
from tandem.rollout.types import Completion, SamplingParams
from tandem.run.ahead import Batch
from tandem.track.rollouts import as_rows, read_table, rollout_files

COLUMNS = ("row_id", "group", "sample", "token_ids", "logprobs_rollout", "response_text", "finish_reason", "version")


class Replay:
    """The recorded batches of steps 1, 2, ..., instead of `Rollouts`.

    Raises:
        UserError: steps are missing, or a setting needs what is not recorded.
    """

    pending = None  # nothing is made ahead

    def __init__(self, config: Config, loader: Loader, prompts: PromptSet, num_steps: int):
        self.files = rollout_files(config.record.replay)
        check_replay(config, list(self.files), num_steps)
        self.loader, self.prompts = loader, prompts
        self._numbers = {row.id: number for number, row in enumerate(prompts.rows)}
        self._step = 0

    def take(self, sampling: SamplingParams, following: SamplingParams | None) -> Batch:
        """The next step's batch, as it was recorded, however it would be sampled now."""
        self._step += 1
        self.loader.next()
        groups: dict[int, list[dict[str, Any]]] = {}
        for row in as_rows(read_table(self.files[self._step], COLUMNS)):
            groups.setdefault(row["group"], []).append(row)
        prompts = [self._prompt(rows[0]["row_id"]) for rows in groups.values()]
        completions = [[_completion(row, prompt) for row in rows] for rows, prompt in zip(groups.values(), prompts)]
        return Batch(prompts, completions, self.loader.state_dict(), [])

    def _prompt(self, row: str) -> Prompt:
        if row not in self._numbers:
            raise UserError(
                f"row {row} of the recorded rollouts is not among the prompts",
                "prompts are made of data.train_files again",
                "give the data.train_files and the length limits that the rollouts were recorded with",
            )
        return self.prompts[self._numbers[row]]

    def settle(self) -> None:
        """Nothing is being generated."""

    def close(self) -> None:
        """Nothing is open."""


def check_replay(config: Config, steps: Sequence[int], num_steps: int) -> None:
    """Raises UserError when the recorded `steps` are not 1 to `num_steps` at least, or something that is needed is not recorded."""
    where = Path(config.record.replay) / "rollouts"
    missing = [step for step in range(1, num_steps + 1) if step not in steps]
    if missing:
        until = missing[0] - 1
        fix = f"set trainer.total_steps={until}" if until else "give the folder of a run, or record one: tandem debug rollout-only RECIPE"
        raise UserError(f"{where} has no rollouts of step {missing[0]}", f"{num_steps} steps are to be trained", fix)
    if config.algorithm.advantage in GREEDY_ADVANTAGES:
        raise UserError(
            f"algorithm.advantage={config.algorithm.advantage} cannot be trained on recorded rollouts",
            "it needs a greedy response to each prompt, and those are not recorded",
            "set another algorithm.advantage",
        )
    if config.rollout.environment:
        raise UserError(
            "rollouts with an environment cannot be trained on again",
            "what it said between the model's turns is recorded as text, not as tokens and pixels",
            "train with generators: tandem train",
        )
    if config.rollout.router_replay:
        raise UserError(
            "rollout.router_replay=true cannot be trained on recorded rollouts",
            "the generator's choices of experts are not recorded",
            "set rollout.router_replay=false",
        )


def _completion(row: dict[str, Any], prompt: Prompt) -> Completion:
    return Completion(
        np.array(row["token_ids"], np.int64),
        np.array(row["logprobs_rollout"], np.float32),
        row["response_text"].removeprefix(prompt.prefill),
        row["finish_reason"],
        row["version"],
    )
