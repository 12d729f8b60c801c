"""A generator's answers to whoever watches it."""

import queue
import threading
import time
from types import SimpleNamespace

import pytest

from tandem.actors.generator import Generator


class Engine:
    """Hands out one prompt, and ends when it may."""

    num_steps = 3

    def __init__(self, fault: Exception | None = None):
        self.may_end, self.fault = threading.Event(), fault

    def generate(self, requests, version, on_finished):
        on_finished(0, ["sample"])
        assert self.may_end.wait(30)
        if self.fault:
            raise self.fault


def generator(engine: Engine) -> Generator:
    made = Generator.__new__(Generator)
    made.engine, made._conversations, made._finished = engine, None, queue.SimpleQueue()
    return made


@pytest.mark.parametrize("fault", [None, RuntimeError("no more")], ids=["ends", "fails"])
def test_a_poll_that_waits_while_the_rollout_ends_answers_at_once(fault):
    """It would have waited a whole second in every step, longer than a short rollout takes."""
    engine = Engine(fault)
    made, ended = generator(engine), []

    def generate():
        try:
            made.generate({7: SimpleNamespace()}, 1)
        except RuntimeError as error:
            ended.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    assert made.poll(30.0).finished == [(7, ["sample"])]
    threading.Timer(0.1, engine.may_end.set).start()
    began = time.monotonic()
    assert made.poll(30.0).finished == []
    assert time.monotonic() - began < 10
    thread.join()
    assert ended == ([fault] if fault else [])
    assert made.poll(0.0).finished == []
