"""Each step's samples: made when the step asks for them, or, one step off policy, while the step before trains."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tandem.data.loader import Loader
from tandem.data.types import Prompt
from tandem.errors import RunError
from tandem.rollout.types import Completion, SamplingParams
from tandem.run.generators import GeneratorGroup


@dataclass(frozen=True)
class Batch:
    prompts: list[Prompt]
    completions: list[list[Completion]]
    loader_state: dict[str, Any]  # after these prompts


class Rollouts:
    """Batches in the loader's order.

    Args:
        ahead: 1: the next batch is begun as soon as one is taken; 0: when it is asked for.
    """

    def __init__(self, loader: Loader, prompts: list[Prompt], generators: GeneratorGroup, *, ahead: int):
        self.loader, self.prompts, self.generators, self.ahead = loader, prompts, generators, ahead
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rollout")
        self._pending: Future[Batch] | None = None

    def take(self, sampling: SamplingParams, following: SamplingParams | None) -> Batch:
        """The next batch. Args: following: how to sample the one after it; None when there is none."""
        batch = (self._pending or self._begin(sampling)).result()
        self._pending = self._begin(following) if self.ahead and following else None
        return batch

    def settle(self) -> None:
        """Wait until no engine is generating, as a publication needs; a failure is raised by the next `take`."""
        if self._pending is not None:
            self._pending.exception()

    def _begin(self, sampling: SamplingParams) -> Future[Batch]:
        _, indices = self.loader.next()
        prompts, state = [self.prompts[index] for index in indices], self.loader.state_dict()
        return self._executor.submit(lambda: Batch(prompts, self.generators.generate(prompts, sampling), state))

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
