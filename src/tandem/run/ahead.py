"""Each step's samples: made when the step asks for them, or, one step off policy, while the step before trains."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tandem.actors.generator_group import GeneratorGroup
from tandem.data.loader import Loader
from tandem.data.types import Prompt
from tandem.errors import RunError
from tandem.rollout.types import Completion, SamplingParams


@dataclass(frozen=True)
class Batch:
    prompts: list[Prompt]
    completions: list[list[Completion]]
    loader_state: dict[str, Any]  # after these prompts
    greedy: list[Completion]  # one of each prompt, if the advantage needs them


class Rollouts:
    """Batches in the loader's order.

    Args:
        ahead: 1: the next batch is begun as soon as one is taken; 0: when it is asked for.
        greedy: make a greedy response to each prompt too.
    """

    def __init__(self, loader: Loader, prompts: Sequence[Prompt], generators: GeneratorGroup, *, ahead: int, greedy: bool = False):
        self.loader, self.prompts, self.generators, self.ahead, self.greedy = loader, prompts, generators, ahead, greedy
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rollout")
        self._pending: Future[Batch] | None = None

    def take(self, sampling: SamplingParams, following: SamplingParams | None) -> Batch:
        """The next batch. Args: following: how to sample the one after it; None when there is none."""
        batch = (self._pending or self._begin(sampling)).result()
        self._pending = self._begin(following) if self.ahead and following else None
        return batch

    @property
    def pending(self) -> Batch | None:
        """The batch that was made ahead; settled, and None when there is none or it failed."""
        future = self._pending
        return future.result() if future is not None and future.done() and future.exception() is None else None

    def restore(self, batch: Batch) -> None:
        """Hand out `batch` first, as when it was saved."""
        self._pending = Future()
        self._pending.set_result(batch)

    def settle(self) -> None:
        """Wait until no engine is generating, as a publication needs; a failure is raised by the next `take`."""
        if self._pending is not None:
            self._pending.exception()

    def _begin(self, sampling: SamplingParams) -> Future[Batch]:
        _, indices = self.loader.next()
        prompts, state = [self.prompts[index] for index in indices], self.loader.state_dict()
        return self._executor.submit(self._make, prompts, sampling, state)

    def _make(self, prompts: list[Prompt], sampling: SamplingParams, state: dict[str, Any]) -> Batch:
        completions, greedy = self.generators.generate(prompts, sampling), list[Completion]()
        if self.greedy:
            one = replace(sampling, num_samples=1, temperature=0.0, top_p=1.0, top_k=0)
            greedy = [first for (first,) in self.generators.generate(prompts, one)]
        return Batch(prompts, completions, state, greedy)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def check_versions(batch: Batch, version: int, max_staleness: int) -> float:
    """The mean number of versions by which the samples are behind `version`. Raises RunError when one is too far behind."""
    behind = [version - completion.version for completions in batch.completions for completion in completions]
    if not 0 <= min(behind) <= max(behind) <= max_staleness:
        raise RunError(
            f"samples are between {min(behind)} and {max(behind)} versions behind the trainer's {version}",
            f"rollout.max_staleness = {max_staleness}: the policy would learn from samples that it did not make",
            "report this with logs/",
        )
    return sum(behind) / len(behind)
