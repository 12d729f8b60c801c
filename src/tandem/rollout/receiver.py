"""The worker's side of a weight publication: vLLM's `worker_extension_cls`, mixed into its worker class in every worker process."""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import get_tp_group
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.platforms import current_platform

from tandem.devices import DEVICES
from tandem.devices.handles import open_shared
from tandem.errors import RunError
from tandem.rollout.direct import DirectLoader
from tandem.rollout.engine import VLLM_DEVICES
from tandem.rollout.reload import LayerwiseLoader
from tandem.rollout.routing import RoutingRecorder
from tandem.sync.buckets import BucketReader, span
from tandem.sync.link import Link
from tandem.sync.types import Bucket, Meeting

if current_platform.is_cpu():
    from tandem.rollout import vllm_cpu

    vllm_cpu.apply()

DEVICE = next(DEVICES[name] for name, platform in VLLM_DEVICES.items() if platform == current_platform.device_type)
MAX_NAMES = 5  # in a message


class WeightUpdate:
    """One publication: from the first bucket to the last. After `abort` the model's weights are of two versions.

    Args:
        verify: which of a bucket's checksums this worker compares.
    """

    def __init__(
        self,
        loader: DirectLoader | LayerwiseLoader,
        reader: BucketReader,
        vllm_config: VllmConfig,
        version: int,
        verify: slice = slice(None),
    ):
        self.loader, self.reader, self.vllm_config, self.version, self.verify = loader, reader, vllm_config, version, verify
        self.names: dict[str, None] = {}  # an ordered set
        self.num_bytes = 0
        self.load_seconds = 0.0
        reader.restart()
        with set_current_vllm_config(vllm_config):
            loader.begin()

    def load(self, bucket: Bucket, sent: Tensor | None = None) -> None:
        """Hand the bucket's tensors to the loader, which splits and fuses them for this rank.

        Args:
            sent: the bucket's bytes, when they came by themselves.

        Raises:
            RunError: another version's bucket, a damaged tensor, one that came before, or one that vLLM does not take; names it.
        """
        if bucket.version != self.version:
            raise RunError(
                f"a bucket of version {bucket.version} came into the publication of version {self.version}",
                "weights of two steps must not mix",
                "this is a bug in the publication: report it",
            )
        began = time.perf_counter()
        try:
            with set_current_vllm_config(self.vllm_config):
                self.loader.load(self._received(bucket, sent))
            self.load_seconds += time.perf_counter() - began
        except RunError:
            raise
        except Exception as error:  # whatever vLLM's many loaders raise, the person needs the tensor's name
            raise RunError(
                f"vLLM does not take the tensor {self.loader.last}",
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
                "the trainer's model and the generator's folder must be the same architecture and size",
            ) from error

    def finish(self, expected_names: Iterable[str]) -> dict[str, object]:
        """Complete the reload if exactly the expected tensors came.

        Returns:
            version, num_tensors, num_bytes, load_seconds (pack_seconds of them in vLLM's packing for its kernels, if known), and the
            lists missing, unexpected, duplicated, which are empty.

        Raises:
            RunError: a tensor is missing or not expected, or one of vLLM's parameters is not complete.
        """
        expected = set(expected_names)
        missing, unexpected = sorted(expected - self.names.keys()), sorted(self.names.keys() - expected)
        if missing or unexpected:
            raise refused(self.version, missing=missing, unexpected=unexpected)
        if incomplete := self.loader.incomplete():
            raise refused(self.version, missing=incomplete)
        with set_current_vllm_config(self.vllm_config):
            self.loader.finish()
        report = {"version": self.version, "num_tensors": len(self.names), "num_bytes": self.num_bytes}
        report |= {"load_seconds": self.load_seconds, "pack_seconds": self.loader.pack_seconds}
        return report | {"missing": [], "unexpected": [], "duplicated": []}

    def abort(self) -> None:
        self.loader.abort()

    def _received(self, bucket: Bucket, sent: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.reader.read(bucket, self.verify, sent=sent):
            if name in self.names:
                raise refused(self.version, duplicated=[name])
            self.names[name] = None
            self.num_bytes += tensor.nbytes
            yield name, tensor


class WeightReceiver:
    """Methods that `collective_rpc` reaches in every worker; `self` is vLLM's worker.

    Arguments and answers are plain dictionaries, lists, numbers and bytes: vLLM carries nothing else safely between processes. A fault
    comes back as `{"error": [what, why, fix]}` for the same reason: vLLM would turn an exception into a text.
    """

    _tandem_update: WeightUpdate | None = None
    _tandem_version: int | None = 0  # the weights that the engine was started with
    _tandem_loader: DirectLoader | LayerwiseLoader | None = None  # both are kept: what they learn once serves every publication
    _tandem_reader: BucketReader | None = None
    _tandem_recorder: RoutingRecorder | None = None
    _tandem_link: Link | None = None

    def begin_update(self, version: int, direct: bool) -> dict:
        """Start the publication of `version`; until it has finished the worker has no valid version.

        Args:
            direct: by the copies that vLLM's loaders would make, or by vLLM's own reload.
        """

        def begin() -> None:
            if self._tandem_update is not None:  # its publisher died
                self._tandem_update.abort()
            model = self.model_runner.model
            if self._tandem_loader is None or self._tandem_reader is None:
                self._tandem_loader = DirectLoader(model) if direct else LayerwiseLoader(model, self.vllm_config.model_config)
                self._tandem_reader = BucketReader(partial(open_shared, DEVICE))
            num_workers = self.vllm_config.parallel_config.world_size
            verify = slice(self.rank % num_workers, None, num_workers)  # all workers of an engine see the same bytes
            self._tandem_update = WeightUpdate(self._tandem_loader, self._tandem_reader, self.vllm_config, version, verify)

        self._tandem_version = None
        return self._answer(begin)

    def join_trainers(self, meeting: dict) -> dict:
        """Args: meeting: the fields of a `Meeting`. The first worker joins; it hands on what it receives."""
        if self.rank == 0:
            self._tandem_link = Link(DEVICE, Meeting(**meeting), None)
        return {}

    def load_bucket(self, bucket: bytes) -> dict:
        """Args: bucket: a pickled `Bucket`."""

        def load() -> None:
            update, here = self._open_update(), pickle.loads(bucket)
            update.load(here, self._sent(here) if here.sender >= 0 else None)
            if here.handle:
                DEVICE.synchronize()  # the trainer writes there again

        return self._answer(load)

    def _sent(self, bucket: Bucket) -> Tensor:
        begin, end = span(bucket)
        if self.rank == 0:
            assert self._tandem_link is not None, "the training ranks were not joined"
            data = self._tandem_link.receive(end - begin, bucket.sender)
        else:
            data = torch.empty(end - begin, dtype=torch.uint8, device=DEVICE.current())
        return get_tp_group().broadcast(data, src=0)

    def finish_update(self, version: int, expected_names: list[str]) -> dict:
        """Returns the report of `WeightUpdate.finish`; from now on the worker has this version."""

        def finish() -> dict[str, object]:
            update = self._open_update()
            assert update.version == version, f"version {update.version} is being published, not {version}"
            report = update.finish(expected_names)
            self._tandem_update, self._tandem_version = None, version
            return report

        return self._answer(finish)

    def zero_states(self) -> dict:
        """Zero the convolution and recurrent states of every layer that has such: what memory holds after a sleep is undefined.

        Choices of experts that were recorded for cached tokens are forgotten.
        """
        if self._tandem_recorder is not None:
            self._tandem_recorder.forget()
        for layer in self.vllm_config.compilation_config.static_forward_context.values():
            if isinstance(layer, MambaBase):
                for state in layer.kv_cache:
                    state.zero_()
        return {}

    def start_recording(self) -> dict:
        """From now on note which experts the routers choose."""
        self._tandem_recorder = RoutingRecorder(self.model_runner)
        return {}

    def take_recorded(self, request_ids: list[str]) -> dict:
        """Returns shape [layers, k] and the experts of each request, int16 bytes, from the first worker: all choose alike."""
        recorder = self._tandem_recorder
        assert recorder is not None, "nothing is recorded"
        taken = recorder.take(request_ids)
        experts = {name: choices.tobytes() for name, choices in taken.items()} if self.rank == 0 else {}
        return {"shape": list(recorder.shape), "experts": experts}

    def loaded_version(self) -> int | None:
        """The version of the weights, or None while or after an update that did not finish."""
        return self._tandem_version

    def _open_update(self) -> WeightUpdate:
        if self._tandem_update is None:
            raise RunError(
                "weights arrived although no publication is open",
                "it was not begun, or it was refused before",
                "begin a new publication",
            )
        return self._tandem_update

    def _answer(self, action: Callable[[], dict | None]) -> dict:
        try:
            return action() or {}
        except RunError as error:
            if self._tandem_update is not None:
                self._tandem_update.abort()
                self._tandem_update = None
            return {"error": [error.what, error.why, error.fix]}


def refused(version: int, **names: list[str]) -> RunError:
    """The error for names that should not be missing, unexpected or duplicated."""
    parts = [
        f"{len(some)} {kind}: {', '.join(some[:MAX_NAMES])}{', ...' if len(some) > MAX_NAMES else ''}"
        for kind, some in names.items()
        if some
    ]
    return RunError(
        f"the weights of version {version} are not the model's: {'; '.join(parts)}",
        "every tensor must arrive exactly once",
        "compare the trainer's export with the names in the model folder's index",
    )
