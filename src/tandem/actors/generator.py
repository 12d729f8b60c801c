"""The Ray actor of a generator. Thin: it sets its process up, then hands calls to its `RolloutEngine`.

Nothing heavy is imported at the top: an actor's environment must be set before torch is.
"""

import contextlib
import os
import queue
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.actors.actor import claimed_devices, log_to_file, see_only
from tandem.actors.processes import Identity, family
from tandem.config.schema import Config
from tandem.rollout.types import Completion, Part, Request
from tandem.sync.shared_memory import shared_memory_prefix
from tandem.sync.types import Bucket, Meeting


@dataclass(frozen=True)
class Signs:
    """An engine's signs of life."""

    num_steps: int  # of the engine since it was started
    finished: list[tuple[int, list[Completion]]]  # index of the prompt, its samples


class Generator:
    """One vLLM engine with its tensor-parallel workers."""

    def __init__(self, config: Config, index: int, run_dir: str, shared_devices: list[str]):
        """Args: shared_devices: ids of the training ranks' devices that it sees, those that it shares first; empty: those it claimed."""
        from tandem import devices
        from tandem.rollout.engine import engine_environment

        self.config, self.index, self.run_dir = config, index, Path(run_dir)
        device = devices.DEVICES[config.device]
        os.environ.update(engine_environment(config.rollout, config.device))
        see_only(device, shared_devices or claimed_devices(device))
        log_to_file(self.run_dir / "logs" / f"generator_{index}.log")
        self.engine: Any = None
        self._conversations: Any = None
        self._finished: queue.SimpleQueue[tuple[int, list[Completion]] | None] = queue.SimpleQueue()  # None: the rollout has ended
        self._timeline: Any = None

    def start(self, model_path: str, banned_token_ids: list[int], stop_token_ids: list[int]) -> tuple[str, list[Identity]]:
        """Load the model. Returns the node, and the processes to kill should the engine hang."""
        import ray

        from tandem.actors import remains
        from tandem.rollout.engine import RolloutEngine

        config = self.config
        max_model_len = config.rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
        remains.remove(self.run_dir)
        with remains.noted(self.run_dir):
            self.engine = RolloutEngine(
                model_path,
                config.rollout,
                dtype=config.model.dtype,
                max_model_len=max_model_len,
                seed=config.trainer.seed,
                banned_token_ids=banned_token_ids,
                stop_token_ids=stop_token_ids,
                device=config.device,
            )
        if config.rollout.environment:
            from tandem.data.prompts import PromptBuilder
            from tandem.rollout.conversations import Conversations
            from tandem.rollout.environment import load_environment

            self._conversations = Conversations(
                load_environment(config.rollout.environment),
                PromptBuilder(model_path, config.data),
                config.rollout.max_turns,
                config.rollout.environment_timeout_s,
                max_model_len,
            )
        return ray.get_runtime_context().get_node_id(), family()

    def generate(self, requests: dict[int, Request], version: int) -> None:
        """`requests` by their index in the rollout; what is finished leaves through `poll`."""
        indices = list(requests)
        hand_out = lambda at, completions: self._finished.put((indices[at], completions))  # noqa: E731
        try:
            if self._conversations:
                self.engine.converse(list(requests.values()), version, self._conversations, hand_out)
            else:
                self.engine.generate(list(requests.values()), version, hand_out)
        finally:
            self._finished.put(None)  # a poll that still waits would wait for nothing

    def decode(self, requests: list[Request], version: int) -> list[Completion]:
        """One sample of each request."""
        return [completions[0] for completions in self.engine.generate(requests, version)]

    def poll(self, timeout_s: float) -> Signs:
        """What has finished since the last call, and how far the engine is; waits up to `timeout_s` for something to finish."""
        return Signs(self.engine.num_steps, self._take_finished(timeout_s))

    def _take_finished(self, timeout_s: float) -> list[tuple[int, list[Completion]]]:
        taken = []
        with contextlib.suppress(queue.Empty):
            taken.append(self._finished.get(timeout=timeout_s) if timeout_s else self._finished.get_nowait())
            while True:
                taken.append(self._finished.get_nowait())
        return [prompt for prompt in taken if prompt is not None]

    def begin_update(self, version: int) -> None:
        self._take_finished(0.0)  # of a rollout that was given up
        self.engine.begin_update(version)

    def join(self, meeting: Meeting) -> None:
        """Collective, with all training ranks."""
        self.engine.join_trainers(meeting)

    def load_bucket(self, bucket: Bucket, data: Any) -> None:
        """Args: data: the bucket's bytes, when they come from another node through Ray."""
        from tandem.sync.buckets import copied_bucket
        from tandem.sync.shared_memory import SHARED_MEMORY

        prefix = shared_memory_prefix(self.run_dir)
        with contextlib.nullcontext(bucket) if data is None else copied_bucket(bucket, data, SHARED_MEMORY, prefix) as here:
            self.engine.load_bucket(here)

    def finish_update(self, version: int, expected_names: list[str]) -> Any:
        return self.engine.finish_update(version, expected_names)

    def start_profile(self) -> None:
        """A timeline; in the thread that generates."""
        from tandem.actors.traces import Timeline

        self._timeline = Timeline(f"generator_{self.index}")

    def stop_profile(self, step: int) -> str:
        """Returns the path of its part of the timeline; empty when this process is younger than the step."""
        timeline, self._timeline = self._timeline, None
        return timeline.write(self.run_dir, step) if timeline else ""

    def sleep(self) -> None:
        self.engine.sleep()

    def wake(self, part: Part) -> None:
        self.engine.wake(part)

    def shutdown(self) -> None:
        if self.engine is not None:
            self.engine.shutdown()
