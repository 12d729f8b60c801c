"""A RolloutEngine in a process of its own, as in a run: vLLM changes threads, seeds and environment of the process it lives in."""

import multiprocessing
import os
import traceback

from tandem.config.schema import RolloutConfig


def serve(pipe, environment: dict[str, str], arguments: dict) -> None:
    os.environ.update(environment)
    from tandem.rollout.engine import RolloutEngine

    engine = None
    while True:
        method, args, kwargs = pipe.recv()
        try:
            if engine is None:
                engine = RolloutEngine(**arguments)
            answer = getattr(engine, method)(*args, **kwargs)
            pipe.send((True, answer))
        except Exception as error:
            traceback.print_exc()
            pipe.send((False, error))
        if method == "shutdown":
            return


class RemoteEngine:
    """Forwards every method call and returns, or raises, what the engine does."""

    def __init__(self, rollout: RolloutConfig, **arguments):
        from tandem.rollout.engine import engine_environment

        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        environment = engine_environment(rollout, arguments["device"])
        self.process = context.Process(target=serve, args=(theirs, environment, {"rollout": rollout, **arguments}))
        self.process.start()
        theirs.close()

    def __getattr__(self, method: str):
        def call(*args, **kwargs):
            self._pipe.send((method, args, kwargs))
            ok, answer = self._pipe.recv()
            if not ok:
                raise answer
            return answer

        return call

    def close(self) -> None:
        if self.process.is_alive():
            self.shutdown()
        self.process.join(30)
        assert self.process.exitcode == 0
