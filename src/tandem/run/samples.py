"""A sample on its way through a step."""

from dataclasses import dataclass, field

import numpy as np

from tandem.data.types import Prompt, Sequence
from tandem.rollout.types import Completion


@dataclass
class Sample:
    """One completion of one prompt, and what the step finds out about it. R: response tokens."""

    prompt: Prompt
    group: int  # which prompt of the step
    number: int  # which sample of the prompt
    completion: Completion
    reward: float = 0.0
    accuracy: float = 0.0
    format: float = 0.0
    reason: str = ""
    answer: str | None = None  # as the grader understood it, in one spelling
    also: dict[str, float] = field(default_factory=dict)  # scores of further graders
    greedy_reward: float = float("nan")  # of the greedy response to the prompt, where one was made
    length_penalty: float = 0.0  # part of the reward, 0 or below
    kl_penalty: float = 0.0  # part of the reward
    kl_rewards: np.ndarray | None = None  # [R] float64, what it is made of
    values: np.ndarray | None = None  # [R] float32, a critic's, before the update
    advantage: float = 0.0
    trainer_logprobs: np.ndarray | None = None  # [R] float32 before the update, where they were computed
    fields: dict[str, np.ndarray] = field(default_factory=dict)  # name -> [R] float32

    @property
    def text(self) -> str:
        """The assistant's whole turn: what the template opened and what the model wrote."""
        return self.prompt.prefill + self.completion.text

    @property
    def num_own(self) -> int:
        """Tokens that the model has sampled."""
        return self.completion.num_own

    def sequence(self) -> Sequence:
        completion = self.completion
        return Sequence(self.prompt, completion.token_ids, self.fields, completion.experts, completion.own, completion.later)


def samples_of(prompts: list[Prompt], completions: list[list[Completion]]) -> list[Sample]:
    """Flat, groups in order."""
    return [
        Sample(prompt, group, number, completion)
        for group, (prompt, several) in enumerate(zip(prompts, completions))
        for number, completion in enumerate(several)
    ]
