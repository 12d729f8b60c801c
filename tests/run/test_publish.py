"""In which order a publication asks a training rank, which answers one call after the other."""

from types import SimpleNamespace

import pytest

from tandem.run import publish as module
from tandem.sync.types import Bucket, TensorEntry


class Rank:
    """Three buckets; remembers what it was asked."""

    def __init__(self):
        self.asked: list[str] = []
        self.next_bucket = SimpleNamespace(remote=self._next)
        self.bucket_bytes = SimpleNamespace(remote=lambda bucket: self.asked.append(f"bytes of {bucket.entries[0].name}") or "data")
        self._num = 0

    def _next(self, *args):
        self.asked.append("next")
        self._num += 1
        if self._num > 3:
            return (self._num, None)
        return (self._num, Bucket("/dev/shm/x", 1, (TensorEntry(f"t{self._num}", "F32", (1,), 0, 4, "", 0, True),)))


@pytest.mark.parametrize(("node", "elsewhere"), [("here", False), ("there", True)])
def test_a_bucket_s_bytes_are_asked_for_before_the_next_bucket(node: str, elsewhere: bool, monkeypatch) -> None:
    """The next one may need ranks in a gather that are asked only once this bucket is loaded: bytes behind it would never come."""
    rank, loaded = Rank(), []
    call = lambda name: SimpleNamespace(remote=lambda *args: loaded.append((name, args)))  # noqa: E731
    actor = SimpleNamespace(begin_update=call("begin"), load_bucket=call("load"), finish_update=call("finish"))
    replica = type("Replica", (), {"node": node, "actor": actor, "version": 0})()
    monkeypatch.setattr(module.ray, "wait", lambda futures, **_: (futures[:1], futures[1:]))
    monkeypatch.setattr(module, "wait", lambda futures, *_: [futures[0][1]])
    monkeypatch.setattr(module, "answers", lambda calls, *_: {key: {"load_seconds": 0.0, "pack_seconds": 0.0} for key in calls})
    trainers = SimpleNamespace(ranks=[rank], nodes=["here"], timeout_s=1.0)
    done = module.publish(trainers, [replica], 1, "x", verify_share=0.0, timeout_s=1.0)
    assert done.names == ["t1", "t2", "t3"]
    each = ["bytes of t{}", "next"] if elsewhere else ["next"]
    assert rank.asked == ["next", *(call.format(n) for n in (1, 2, 3) for call in each)]
    assert [args[1] for name, args in loaded if name == "load"] == ["data" if elsewhere else None] * 3
