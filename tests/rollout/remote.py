"""A RolloutEngine in a process of its own, as in a run: vLLM changes threads, seeds and environment of the process it lives in."""

import multiprocessing
import os

from tandem.config.schema import RolloutConfig
from tandem.rollout.engine import engine_environment
from tandem.sync.buckets import BucketWriter
from tandem.sync.memory import shared_files
from tandem.sync.shared_memory import SHARED_MEMORY


def serve(pipe, environment: dict[str, str], arguments: dict) -> None:
    os.environ.update(environment)
    from tandem.rollout.engine import RolloutEngine

    engine = None
    while True:
        method, args, kwargs = pipe.recv()
        finished: list[tuple] = []
        if method in ("generate", "converse"):
            kwargs["on_finished"] = lambda *prompt, heard=finished: heard.append(prompt)
        if method == "give_up":
            method, kwargs["on_finished"] = "generate", end_at_first
        try:
            if engine is None:
                engine = RolloutEngine(**arguments)
            pipe.send((True, getattr(engine, method)(*args, **kwargs), finished))
        except Exception as error:  # noqa: BLE001 whatever it is, the test sees it
            pipe.send((False, error, finished))
        if method == "shutdown":
            return


def end_at_first(*_) -> None:
    raise RuntimeError("given up")


class RemoteEngine:
    """Forwards every method call and returns, or raises, what the engine does. `finished`: what the last `generate` handed out early.

    `give_up` is a `generate` that ends when the first prompt is finished.
    """

    def __init__(self, rollout: RolloutConfig, **arguments):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        environment = engine_environment(rollout, "cpu")
        self.process = context.Process(target=serve, args=(theirs, environment, {"rollout": rollout, "device": "cpu", **arguments}))
        self.process.start()
        theirs.close()
        self.version, self.finished = 0, []

    def __getattr__(self, method: str):
        def call(*args, **kwargs):
            self._pipe.send((method, args, kwargs))
            is_answer, answer, self.finished = self._pipe.recv()
            if not is_answer:
                raise answer
            return answer

        return call

    def publish(
        self, tensors: dict, expected_names: list[str] | None = None, bucket_bytes: int = 1 << 16, change_bucket=lambda b: b
    ) -> dict:
        """Publish `tensors` as the next version, in many buckets."""
        self.version += 1
        self.begin_update(self.version)
        writer = BucketWriter(shared_files(SHARED_MEMORY, f"tandem-test-{os.getpid()}"), bucket_bytes)
        try:
            for bucket in writer.write(tensors.items() if isinstance(tensors, dict) else tensors, self.version):
                self.load_bucket(change_bucket(bucket))
        finally:
            writer.close()
        return self.finish_update(self.version, expected_names or list(dict(tensors)))

    def close(self) -> None:
        if self.process.is_alive():
            self.shutdown()
        self.process.join(30)
        assert self.process.exitcode == 0
