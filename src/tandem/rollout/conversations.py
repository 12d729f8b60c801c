"""Many conversations with one engine: while the environment of one thinks, the others go on."""

import asyncio
import contextlib
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from tandem.data.images import BROKEN
from tandem.data.prompts import PromptBuilder
from tandem.errors import UserError
from tandem.rollout.conversation import Conversation
from tandem.rollout.environment import Environment, Maker, Step, what_is_wrong
from tandem.rollout.types import Completion, Request

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.2  # with nothing to decode; then whoever watches the engine gets a sign of life


class Turns(Protocol):
    """The engine as conversations need it: a turn is a request for one sample, by a name."""

    def add(self, name: str, request: Request, number: int) -> None: ...

    def advance(self) -> list[tuple[str, Completion]]:
        """One step of decoding; the turns that it finished."""
        ...

    def is_busy(self) -> bool: ...


@dataclass
class _Talk:
    conversation: Conversation
    environment: Environment
    future: "Future[Step] | None" = None
    deadline: float = 0.0


@dataclass(frozen=True)
class Conversations:
    """How the model talks with an environment.

    Args:
        max_turns: of the model.
        timeout_s: longest wait for one answer of the environment; the sample then ends with reason `timeout`.
    """

    maker: Maker
    builder: PromptBuilder
    max_turns: int
    timeout_s: float
    max_model_len: int
    _tracebacks: list[str] = field(default_factory=list)

    def run(
        self, turns: Turns, requests: Sequence[Request], on_sign: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Every request's index and samples, as soon as all of them have ended. Args: on_sign: called at each step or wait.

        Raises:
            UserError: the environment raised in every conversation.
        """
        self._tracebacks.clear()
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()  # names of conversations whose environment has answered
        talks = {f"{i}:{j}": self._begin(request, j) for i, request in enumerate(requests) for j in range(request.sampling.num_samples)}
        ended: list[dict[int, Completion]] = [{} for _ in requests]
        open_names, num_talks = set(talks), len(talks)
        with _event_loop() as loop:
            for name, talk in talks.items():
                turns.add(f"{name}:0", talk.conversation.next_request(), talk.conversation.number)
            while open_names:
                over: dict[str, str] = {}  # name -> why
                if turns.is_busy():
                    for turn_name, completion in turns.advance():
                        name = turn_name.rpartition(":")[0]
                        if reason := self._took(talks[name], completion):
                            over[name] = reason
                        else:
                            self._ask(talks[name], name, loop, waiting)
                on_sign()
                for name in self._answered(talks, open_names, waiting, may_wait=not turns.is_busy() and not over):
                    if reason := self._heard(talks[name]):
                        over[name] = reason
                    else:
                        talk = talks[name].conversation
                        turns.add(f"{name}:{talk.num_turns}", talk.next_request(), talk.number)
                for name, reason in over.items():
                    open_names.remove(name)
                    i, j = map(int, name.split(":"))
                    ended[i][j] = talks[name].conversation.completion(reason)
                    if len(ended[i]) == requests[i].sampling.num_samples:
                        yield i, [ended[i][j] for j in range(len(ended[i]))]
        self._report(num_talks)

    def _begin(self, request: Request, number: int) -> _Talk:
        environment = self.maker.make()
        environment.reset(request.prompt.row)
        return _Talk(Conversation(request, number, self.max_model_len), environment)

    def _took(self, talk: _Talk, turn: Completion) -> str:
        """The model's turn. Why the conversation is over, if it is. A last turn that leaves no room for more is still answered, and
        scored."""
        talk.conversation.take(turn)
        return "length" if turn.finish_reason == "length" else ""

    def _ask(self, talk: _Talk, name: str, loop: asyncio.AbstractEventLoop, waiting: "queue.SimpleQueue[str]") -> None:
        talk.deadline = time.monotonic() + self.timeout_s
        talk.future = asyncio.run_coroutine_threadsafe(_step(talk.environment, talk.conversation.last_text), loop)
        talk.future.add_done_callback(lambda _: waiting.put(name))

    def _answered(self, talks: dict[str, _Talk], names: set[str], waiting: "queue.SimpleQueue[str]", *, may_wait: bool) -> list[str]:
        """Conversations whose environment has answered, or has had its time."""
        found = list[str]()
        with contextlib.suppress(queue.Empty):
            found.append(waiting.get(timeout=WAIT_SECONDS) if may_wait else waiting.get_nowait())
            while True:
                found.append(waiting.get_nowait())
        now = time.monotonic()
        late = [name for name in names if (talk := talks[name]).future is not None and not talk.future.done() and now > talk.deadline]
        for name in late:
            future = talks[name].future
            assert future is not None
            future.cancel()
        return [name for name in dict.fromkeys([*found, *late]) if name in names and talks[name].future is not None]

    def _heard(self, talk: _Talk) -> str:
        """The environment's answer. Why the conversation is over, if it is."""
        future, talk.future = talk.future, None
        assert future is not None
        if future.cancelled():
            return "timeout"
        if error := future.exception(timeout=0):
            return self._failed(error)
        step = future.result(timeout=0)
        if why := what_is_wrong(step):
            return self._failed(TypeError(f"an environment's step must return a Step; {why}"))
        talk.conversation.score += step.score
        if step.done or not step.messages:
            return "stop"
        if talk.conversation.num_turns >= self.max_turns:
            return "turns"
        try:
            return "" if talk.conversation.hear(self.builder, step.messages) else "length"
        except BROKEN as error:  # a message that cannot be tokens, or an image that cannot be read
            return self._failed(error)

    def _failed(self, error: BaseException) -> str:
        self._tracebacks.append("".join(traceback.format_exception(error)))
        return "failed"

    def _report(self, num_talks: int) -> None:
        if self._tracebacks:
            log.warning(
                "the environment failed in %d of %d conversations; the first:\n%s", len(self._tracebacks), num_talks, self._tracebacks[0]
            )
        if len(self._tracebacks) == num_talks:
            raise UserError("rollout.environment failed in every conversation", self._tracebacks[0].strip(), "mend it, or choose another")


async def _step(environment: Environment, text: str) -> Step:
    return await environment.step(text)


@contextlib.contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own; what still runs in it at the end is cancelled, and a thread that blocks it is left behind."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="tandem-environment")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(_end, loop)
        thread.join(1.0)


def _end(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_soon(loop.stop)
