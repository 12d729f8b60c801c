"""The worker's side of a weight publication: vLLM's `worker_extension_cls`, mixed into its worker class in every worker process."""

import logging
from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info
from vllm.platforms import current_platform

from tandem.errors import RunError
from tandem.sync.buckets import BucketReader
from tandem.sync.types import Bucket, TensorEntry

if current_platform.is_cpu():
    from tandem.rollout import vllm_cpu

    vllm_cpu.apply()

# It warns at every update that rotary tables "failed to load"; what did not load is checked, name by name, below.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)

MAX_NAMES = 5  # in a message


class WeightUpdate:
    """One publication: from the first bucket to the last, over vLLM's layer-by-layer reload.

    A layer's tensors may arrive in several buckets; the layer changes when its last one is there. After `abort` every layer holds
    complete weights again, but of two versions, so the worker must not generate until the next publication.
    """

    def __init__(self, model: nn.Module, vllm_config: VllmConfig, version: int):
        self.model, self.vllm_config, self.version = model, vllm_config, version
        self.names: dict[str, None] = {}  # an ordered set
        self.num_bytes = 0
        self._reader = BucketReader()
        self._last = "(none yet)"
        self._loaded_parameters: set[str] = set()
        with set_current_vllm_config(vllm_config):
            initialize_layerwise_reload(model)
        self._parameters = {name for name, _ in model.named_parameters()}

    def load(self, bucket: Bucket) -> None:
        """Hand the bucket's tensors to vLLM, which splits and fuses them for this rank.

        Raises:
            RunError: another version's bucket, a damaged tensor, one that came before, or one that vLLM does not take; names it.
        """
        if bucket.version != self.version:
            raise RunError(
                f"a bucket of version {bucket.version} came into the publication of version {self.version}",
                "weights of two steps must not mix",
                "this is a bug in the publication: report it",
            )
        try:
            with set_current_vllm_config(self.vllm_config):
                self._loaded_parameters |= self.model.load_weights(self._received(bucket))
        except RunError:
            raise
        except Exception as error:  # whatever vLLM's many loaders raise, the person needs the tensor's name
            raise RunError(
                f"vLLM does not take the tensor {self._last}",
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
                "the trainer's model and the generator's folder must be the same architecture and size",
            ) from error

    def finish(self, expected_names: Iterable[str]) -> dict[str, object]:
        """Complete the reload if exactly the expected tensors came.

        Returns:
            version, num_tensors, num_bytes, and the lists missing, unexpected, duplicated, which are empty.

        Raises:
            RunError: a tensor is missing or not expected, or one of vLLM's parameters is not complete.
        """
        expected = set(expected_names)
        missing, unexpected = sorted(expected - self.names.keys()), sorted(self.names.keys() - expected)
        if missing or unexpected:
            raise refused(self.version, missing=missing, unexpected=unexpected)
        if incomplete := self._incomplete_parameters():
            raise refused(self.version, missing=sorted(incomplete))
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model, self.vllm_config.model_config)
        report = {"version": self.version, "num_tensors": len(self.names), "num_bytes": self.num_bytes}
        return report | {"missing": [], "unexpected": [], "duplicated": []}

    def abort(self) -> None:
        """Put the tensors that the kernels use back into every layer that has not changed yet, and drop what was buffered for it."""
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                _place_kernel_tensors(layer, info)
                info.reset()

    def _incomplete_parameters(self) -> set[str]:
        """vLLM's parameters that nothing, or not everything, was loaded into: what must hold whatever names were expected.

        A layer that is still waiting is short of elements. Embeddings always are where vLLM pads the vocabulary; they have one tensor.
        """
        names = self._parameters - self._loaded_parameters
        for prefix, layer in self.model.named_modules():
            if get_layerwise_info(layer).can_load() and not isinstance(layer, VocabParallelEmbedding):
                names |= {f"{prefix}.{name}" for name, _ in layer.named_parameters(recurse=False)}
        return names

    def _received(self, bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._reader.read(bucket):
            if name in self.names:
                raise refused(self.version, duplicated=[name])
            self.names[name] = None
            self.num_bytes += tensor.nbytes
            self._last = f"{name} of shape {list(tensor.shape)}"
            yield name, tensor


class WeightReceiver:
    """Methods that `collective_rpc` reaches in every worker; `self` is vLLM's worker.

    Arguments and answers are plain dictionaries, lists and numbers, because vLLM carries nothing else safely between processes. A fault
    comes back as `{"error": [what, why, fix]}` for the same reason: vLLM would turn an exception into a text.
    """

    _tandem_update: WeightUpdate | None = None
    _tandem_version: int | None = 0  # the weights that the engine was started with

    def begin_update(self, version: int) -> dict:
        """Start the publication of `version`; until it has finished the worker has no valid version."""

        def begin() -> None:
            if self._tandem_update is not None:  # its publisher died
                self._tandem_update.abort()
            self._tandem_update = WeightUpdate(self.model_runner.model, self.vllm_config, version)

        self._tandem_version = None
        return self._answer(begin)

    def load_bucket(self, bucket: dict) -> dict:
        """Args: bucket: a `Bucket` as `dataclasses.asdict` gives it."""
        entries = tuple(TensorEntry(**entry | {"shape": tuple(entry["shape"])}) for entry in bucket["entries"])
        return self._answer(lambda: self._open_update().load(Bucket(bucket["path"], bucket["version"], entries)))

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
        """Zero the convolution and recurrent states of every layer that has such: what memory holds after a sleep is undefined."""
        for layer in self.vllm_config.compilation_config.static_forward_context.values():
            if isinstance(layer, MambaBase):
                for state in layer.kv_cache:
                    state.zero_()
        return {}

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
