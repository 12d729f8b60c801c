"""The generators as one: deals out prompts, watches every engine, and replaces one that fails, which then gets the unfinished prompts."""

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from tandem.actors import cluster
from tandem.actors.generator import Generator
from tandem.actors.processes import Identity, kill_family
from tandem.actors.waiting import wait
from tandem.config.schema import Config
from tandem.data.types import Prompt
from tandem.errors import RunError, UserError
from tandem.progress import Progress
from tandem.rollout.types import Completion, Part, Request, SamplingParams, requests_of

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # an engine with no news answers after this long
KILL_SECONDS = 30.0


class GeneratorsFailed(RunError):
    """`rollout.max_failures` failures in one rollout or publication: the trainers are well, so the run can still be saved."""


class Replica:
    """One engine: its actor, the version of its weights, and what is needed to kill it and to have it again."""

    def __init__(self, index: int, make: Callable[[], Any], start: Callable[[Any], list[Any]]):
        self.index, self._make, self._start = index, make, start
        self.version = 0
        self.is_linked, self.num_links = False, 0  # to the training ranks, with sync.transport=collective
        self.has_refused = False  # its last publication, and lives on
        self.node, self.family = "", list[Identity]()
        self.actor: Any = make()

    def __repr__(self) -> str:
        return f"generator {self.index}"

    def start(self) -> Any:
        """A future of its process's node and family, once the model is loaded."""
        self.version = 0
        return self._start(self.actor)

    def replace(self) -> None:
        """Kill the engine, whatever state it is in, and make another in its seat; it must be started."""
        cluster.run_on(self.node, kill_family, self.family, timeout_s=KILL_SECONDS)
        ray.kill(self.actor)
        self.actor, self.is_linked, self.has_refused = self._make(), False, False


class GeneratorGroup:
    """All generators; all samples of a prompt are made by one, so that they share its prefix.

    Args:
        seats, shared_devices: of each generator: Ray's options, and ids of the devices it sees that training ranks have, its own first.
        note: shows a line to the person who watches the run.
        progress: (done, in all): engines that are started, samples of a rollout.
    """

    def __init__(
        self,
        config: Config,
        seats: list[dict[str, Any]],
        shared_devices: list[list[str]],
        run_dir: str,
        note: Callable[[str], None],
        progress: Progress,
    ):
        self.config, self.note, self.progress = config, note, progress
        self.timeout_s, self.health_timeout_s = config.rollout.timeout_s, config.rollout.health_timeout_s
        # With trainers the run's own: publishes their present weights to some replicas. Without them all have the start model's.
        self.catch_up: Callable[[list[Replica]], object] = lambda replicas: None
        self._start_arguments: tuple[Any, ...] = ()
        self._num_failures = 0
        actor = cluster.answering_aside(Generator, "poll")
        start = lambda actor: actor.start.remote(*self._start_arguments)  # noqa: E731
        self.replicas = [
            Replica(index, partial(actor.options(**seat).remote, config, index, run_dir, shared), start)
            for index, (seat, shared) in enumerate(zip(seats, shared_devices))
        ]

    def start(self, model_path: str, banned_token_ids: list[int], stop_token_ids: list[int]) -> None:
        self._start_arguments = (model_path, banned_token_ids, stop_token_ids)
        started = wait([replica.start() for replica in self.replicas], self.timeout_s, "starting the generators", self.progress)
        for replica, (node, family) in zip(self.replicas, started):
            replica.node, replica.family = node, family

    def generate(self, prompts: Seq[Prompt], sampling: SamplingParams) -> list[list[Completion]]:
        """[prompts][num_samples], in order, each by the weights that its engine holds.

        Raises:
            GeneratorsFailed: too many engines failed; with the last one's own traceback.
        """
        rollout = Rollout(requests_of(prompts, sampling))
        num = len(self.replicas)
        shares = {replica: rollout.unfinished(range(replica.index, len(prompts), num)) for replica in self.replicas}
        running = {replica: Watched(replica, share) for replica, share in shares.items() if share}
        while running:  # to the last poll: one that is left behind would take prompts of the next rollout
            wait_for_news(list(running.values()))
            for replica, watched in list(running.items()):
                try:
                    for index, completions in watched.news(self.health_timeout_s):
                        rollout.finish(index, completions)
                    if watched.is_done:
                        del running[replica]
                except EngineFailure as failure:
                    self._renew(replica, failure)
                    if self.config.trainer.deterministic:  # in a smaller batch the last bits of log-probs would be others
                        rollout.forget(watched.indices)
                    if share := rollout.unfinished(watched.indices):
                        running[replica] = Watched(replica, share)
                    else:
                        del running[replica]
            self.progress(rollout.num_done, rollout.num_samples)
        assert rollout.is_complete, "an engine is done and has not handed out all of its prompts"
        self._num_failures = 0
        return rollout.results()

    def sleep(self) -> None:
        """Free the devices that the trainer shares: weights and caches are forgotten. Nothing with devices of their own."""
        self._change_memory(self.replicas, "sleep")

    def wake_weights(self) -> None:
        """Allocate all engines' weights again, before a publication."""
        self._change_memory(self.replicas, "wake", "weights")

    def wake_caches(self, replicas: list[Replica], failed: dict[Replica, "EngineFailure"]) -> None:
        """Allocate the caches again, after a publication. Engines that fail are added to `failed`: a new one would not have the weights."""
        if not cluster.own_devices(self.config):
            part: Part = "kv_cache"
            answers({replica: replica.actor.wake.remote(part) for replica in replicas}, self.health_timeout_s, "its wake", failed)

    def _change_memory(self, replicas: list[Replica], method: str, *args: Any) -> None:
        while replicas and not cluster.own_devices(self.config):  # a new engine is awake, and must do it too
            failed: dict[Replica, EngineFailure] = {}
            calls = {replica: getattr(replica.actor, method).remote(*args) for replica in replicas}
            answers(calls, self.health_timeout_s, f"its {method}", failed)
            self.replace_failed(failed)
            replicas = list(failed)

    def decode(
        self, replicas: list[Replica], prompts: Seq[Prompt], sampling: SamplingParams, failed: dict[Replica, "EngineFailure"]
    ) -> dict[Replica, list[Completion]]:
        """[engine][prompt] one sample of each prompt by every engine that does not fail; the others are added to `failed`."""
        requests = requests_of(prompts, sampling)
        calls = {replica: replica.actor.decode.remote(requests, replica.version) for replica in replicas}
        return answers(calls, self.health_timeout_s, "decoding the canary", failed)

    def replace_failed(self, failed: dict[Replica, "EngineFailure"]) -> None:
        """Count failures and start anew what is lost, or has failed twice in a row: it is behind until the next publication."""
        for replica, failure in failed.items():
            self.failed(replica, failure)
            if failure.lost or replica.has_refused:
                self.renew(replica)
            else:
                replica.has_refused = True

    def failed(self, replica: Replica, failure: "EngineFailure") -> None:
        """Count a failure. Raises GeneratorsFailed when there were too many."""
        self._num_failures += 1
        log.error("%s failed during %s:\n%s", replica, failure.during, failure.traceback)
        if self._num_failures > self.config.rollout.max_failures:
            raise GeneratorsFailed(
                f"{replica} failed during {failure.during}: {failure.what}",
                f"failure {self._num_failures} in a row, rollout.max_failures = {self.config.rollout.max_failures}\n{failure.traceback}",
                f"see logs/generator_{replica.index}.log; go on from the checkpoint that is saved now",
            )
        self.note(f"{replica} failed during {failure.during} ({failure.what}); trying again")

    def renew(self, replica: Replica) -> None:
        """Start an engine anew, with the start model's weights, as often as may fail."""
        while True:
            replica.replace()
            try:
                replica.node, replica.family = ray.get(replica.start(), timeout=self.timeout_s)
                return
            except RayError as error:
                self.failed(replica, failure_of(error, "its start"))

    def _renew(self, replica: Replica, failure: "EngineFailure") -> None:
        self.failed(replica, failure)
        self.renew(replica)
        self.catch_up([replica])

    def shutdown(self) -> None:
        wait([replica.actor.shutdown.remote() for replica in self.replicas], KILL_SECONDS, "stopping the generators")


class Rollout:
    """Requests and which of them are finished."""

    def __init__(self, requests: list[Request]):
        self.requests = requests
        self._results: dict[int, list[Completion]] = {}
        self.num_done, self.num_samples = 0, sum(request.sampling.num_samples for request in requests)

    def finish(self, index: int, completions: list[Completion]) -> None:
        assert index not in self._results, f"prompt {index} was generated twice"
        self._results[index] = completions
        self.num_done += len(completions)

    def forget(self, indices: Seq[int]) -> None:
        """These prompts are to be generated again."""
        self.num_done -= sum(len(self._results.pop(index)) for index in indices if index in self._results)

    def unfinished(self, indices: Seq[int]) -> dict[int, Request]:
        return {index: self.requests[index] for index in indices if index not in self._results}

    @property
    def is_complete(self) -> bool:
        return len(self._results) == len(self.requests)

    def results(self) -> list[list[Completion]]:
        return [self._results[index] for index in range(len(self.requests))]


class EngineFailure(Exception):
    """An engine died, hangs, or answered with an error that a fresh one may not have. `lost`: it does not answer any more, or with an
    error that is none of ours, as when one of its workers or its device is gone."""

    def __init__(self, during: str, what: str, traceback: str, *, lost: bool):
        super().__init__(what)
        self.during, self.what, self.traceback, self.lost = during, what, traceback, lost


def failure_of(error: RayError, during: str) -> EngineFailure:
    """Raises UserError when the other side raised it: no new engine would help."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, UserError):
        raise error.cause from error
    if isinstance(error, RayActorError):
        return EngineFailure(during, "its process died", cluster.cause_of_death(error), lost=True)
    if isinstance(error, GetTimeoutError):
        return EngineFailure(during, "it did not answer in time", str(error), lost=True)
    if isinstance(error, RayTaskError) and isinstance(error.cause, RunError):
        return EngineFailure(during, error.cause.what, str(error), lost=False)
    return EngineFailure(during, str(error).strip().splitlines()[-1], str(error), lost=True)


def answers(calls: dict[Replica, Any], timeout_s: float, during: str, failed: dict[Replica, EngineFailure]) -> dict[Replica, Any]:
    """What the engines answer within a time limit; those that fail are added to `failed`."""
    ends, answered = time.monotonic() + timeout_s, {}
    for replica, call in calls.items():
        try:
            answered[replica] = ray.get(call, timeout=max(0.0, ends - time.monotonic()))
        except RayError as error:
            failed[replica] = failure_of(error, during)
    return answered


class Watched:
    """A share of a rollout on one engine, from the call to the last prompt."""

    def __init__(self, replica: Replica, requests: dict[int, Request]):
        self.replica, self.indices = replica, list(requests)
        self.is_done = False
        self._call = replica.actor.generate.remote(requests, replica.version)
        self._poll = replica.actor.poll.remote(POLL_SECONDS)
        self._num_steps, self._last_sign = -1, time.monotonic()

    @property
    def futures(self) -> list[Any]:
        return [self._call, self._poll]

    def news(self, timeout_s: float) -> list[tuple[int, list[Completion]]]:
        """Prompts finished since the last look, with their index.

        Raises:
            EngineFailure: the call failed, or nothing has moved for `timeout_s` seconds.
        """
        finished: list[tuple[int, list[Completion]]] = []
        try:
            if ray.wait([self._call], timeout=0)[0]:
                ray.get(self._call)
                self.is_done = True  # what it finished last comes with another poll
                last = ray.get([self._poll, self.replica.actor.poll.remote(0.0)], timeout=timeout_s)
                return [prompt for signs in last for prompt in signs.finished]
            if ray.wait([self._poll], timeout=0)[0]:
                signs = ray.get(self._poll)
                finished = list(signs.finished)
                if signs.num_steps != self._num_steps:
                    self._num_steps, self._last_sign = signs.num_steps, time.monotonic()
                self._poll = self.replica.actor.poll.remote(POLL_SECONDS)
        except RayError as error:
            raise failure_of(error, "the rollout") from error
        if time.monotonic() - self._last_sign > timeout_s:
            text = f"rollout.health_timeout_s = {timeout_s:g}; its last step was number {self._num_steps}"
            raise EngineFailure("the rollout", f"no sign of life for {timeout_s:g} s", text, lost=True)
        return finished


def wait_for_news(running: list[Watched]) -> None:
    ray.wait([future for watched in running for future in watched.futures], num_returns=1, timeout=POLL_SECONDS)
