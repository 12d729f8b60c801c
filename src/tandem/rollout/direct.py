"""New weights straight into the tensors that a CPU engine computes with.

vLLM's loaders are run once for each tensor name, on tensors without data, and the copies they would make are noted: which part of the
Hugging Face tensor goes where. A publication repeats these copies on data. Parameters that vLLM packs for its kernels are gathered beside
them, a linear layer or one expert at a time, and packed by vLLM's own code when they are whole. Imported in vLLM worker processes only.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import restore_layer_on_meta
from vllm.model_executor.model_loader.reload.utils import get_layer_params_buffers, get_tensor_load_numel

from tandem.errors import RunError


@dataclass(frozen=True)
class View:
    """A strided part of a tensor's memory, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, tensor: Tensor) -> Tensor:
        return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)


class Unit:
    """What is packed, or only filled, at once: the parameters of one layer, or of one of its experts."""

    def __init__(self, layer: nn.Module, prefix: str, shapes: dict[str, Tensor]):
        """Args: shapes: of the parameters as vLLM's loaders fill them, by name, without data."""
        self.layer, self.prefix, self.shapes = layer, prefix, shapes
        self.num_needed = 0  # elements
        self.num_copied = 0
        self.pack_seconds = 0.0  # of this publication
        self.values: dict[str, Tensor] = {}  # what the copies fill

    def copy(self, parameter: str, to: View, source: Tensor) -> None:
        if not self.values:
            self.values = {name: self._space(name, shape) for name, shape in self.shapes.items()}
        to.of(self.values[parameter]).copy_(source)
        self.num_copied += source.numel()
        assert self.num_copied <= self.num_needed, f"{self.prefix} was filled twice"
        if self.num_copied == self.num_needed:
            began = perf_counter()
            self.finish()
            self.values = {}
            self.pack_seconds = perf_counter() - began

    def reset(self) -> None:
        self.num_copied, self.pack_seconds, self.values = 0, 0.0, {}

    def _space(self, name: str, shape: Tensor) -> Tensor:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError


class LayerUnit(Unit):
    """A layer without experts."""

    def _space(self, name: str, shape: Tensor) -> Tensor:
        kernel = getattr(self.layer, name).data
        alike = (kernel.shape, kernel.stride(), kernel.dtype) == (shape.shape, shape.stride(), shape.dtype)
        assert alike or not isinstance(self.layer, VocabParallelEmbedding), "the padding of a vocabulary would be anything"
        return kernel if alike else torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)

    def finish(self) -> None:
        """Have vLLM pack what it packs. The layer keeps its `Parameter` objects: compiled code may hold them."""
        method = getattr(self.layer, "quant_method", None)
        if method is None:
            return
        kernel = {name: getattr(self.layer, name) for name in self.shapes}
        for name, value in self.values.items():
            if value is not kernel[name].data and value.data_ptr() != kernel[name].data_ptr():
                setattr(self.layer, name, nn.Parameter(value, requires_grad=False))
        method.process_weights_after_loading(self.layer)
        for name, parameter in kernel.items():
            if (packed := getattr(self.layer, name)) is not parameter:
                parameter.data.copy_(packed)
                setattr(self.layer, name, parameter)


class ExpertUnit(Unit):
    """One expert of a layer, packed as a layer of one expert."""

    def __init__(self, layer: nn.Module, prefix: str, shapes: dict[str, Tensor], expert: int):
        super().__init__(layer, f"{prefix}.{expert}", {name: shape[:1] for name, shape in shapes.items()})
        self.expert = expert
        self.num_needed = sum(shape.numel() for shape in self.shapes.values())

    def _space(self, name: str, shape: Tensor) -> Tensor:
        return torch.empty(shape.shape, dtype=shape.dtype)

    def finish(self) -> None:
        alone = nn.Module()
        for name, value in self.values.items():
            alone.register_parameter(name, nn.Parameter(value, requires_grad=False))
        self.layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(alone)
        for name in self.values:
            getattr(self.layer, name).data[self.expert].copy_(getattr(alone, name)[0])


@dataclass(frozen=True)
class Copy:
    source: View
    unit: Unit
    parameter: str
    to: View


class DirectLoader:
    """Loads Hugging Face tensors into `model`, remembering how from one publication to the next."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.last = "(none yet)"  # the tensor that vLLM's loaders saw last
        self._copies: dict[tuple[str, torch.dtype, torch.Size], list[Copy]] = {}
        self._units: dict[int, list[Unit]] = {}  # of each layer, by its id

    def begin(self) -> None:
        for units in self._units.values():
            for unit in units:
                unit.reset()

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Raises RunError, or whatever vLLM's loaders raise about a name or a shape, before anything is copied."""
        tensors = list(tensors)
        new = [(name, tensor) for name, tensor in tensors if (name, tensor.dtype, tensor.shape) not in self._copies]
        if new:
            self._plan(new)
        for name, tensor in tensors:
            for copy in self._copies[name, tensor.dtype, tensor.shape]:
                copy.unit.copy(copy.parameter, copy.to, copy.source.of(tensor))

    def incomplete(self) -> list[str]:
        """Layers and experts that did not get all their elements."""
        return [unit.prefix for units in self._units.values() for unit in units if unit.num_copied != unit.num_needed]

    def finish(self) -> None:
        """Each layer was finished when its last element came."""

    @property
    def pack_seconds(self) -> float:
        """Of this publication: what vLLM took to pack weights for its kernels."""
        return sum(unit.pack_seconds for units in self._units.values() for unit in units)

    def abort(self) -> None:
        """Some layers have new weights, some old ones, one may have both: the worker must not generate."""

    def _plan(self, tensors: list[tuple[str, Tensor]]) -> None:
        """Note the copies of `tensors`. The model's parameters have no data meanwhile."""
        sources = {name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for name, x in tensors}
        layers = list(self.model.named_modules())
        for _, layer in layers:
            info = get_layerwise_info(layer)
            info.kernel_tensors = get_layer_params_buffers(layer)
            info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
            restore_layer_on_meta(layer, info)
        try:
            owners = {
                parameter.untyped_storage()._cdata: (prefix, layer, name)
                for prefix, layer in layers
                for name, parameter in layer.named_parameters(recurse=False)
            }
            if not self._units:
                self._units = {id(layer): self._units_of(prefix, layer) for prefix, layer in layers}
            with _CopyRecorder(sources, owners) as recorder:
                self.model.load_weights(self._watched(sources))
        finally:
            for _, layer in layers:
                _place_kernel_tensors(layer, get_layerwise_info(layer))
                get_layerwise_info(layer).reset()
        for name, tensor in tensors:
            copies = [c for noted in recorder.copies.get(name, []) for c in self._of_units(*noted)]
            self._copies[name, tensor.dtype, tensor.shape] = copies

    def _watched(self, sources: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in sources.items():
            self.last = f"{name} of shape {list(tensor.shape)}"
            yield name, tensor

    def _units_of(self, prefix: str, layer: nn.Module) -> list[Unit]:
        parameters = dict(layer.named_parameters(recurse=False))
        shapes = {name: parameter.data for name, parameter in parameters.items()}
        if not shapes:
            return []
        if isinstance(layer, RoutedExperts):
            num_experts = next(iter(shapes.values())).size(0)
            return [ExpertUnit(layer, prefix, shapes, expert) for expert in range(num_experts)]
        unit = LayerUnit(layer, prefix, shapes)
        unit.num_needed = sum(map(get_tensor_load_numel, parameters.values()))
        if isinstance(layer, VocabParallelEmbedding):  # vLLM pads the vocabulary
            unit.num_needed = layer.shard_indices.num_org_elements * layer.embedding_dim
        return [unit]

    def _of_units(self, layer: nn.Module, parameter: str, source: View, to: View) -> list[Copy]:
        """A noted copy as copies into units: cut where it fills several experts."""
        units = self._units[id(layer)]
        if not isinstance(layer, RoutedExperts):
            return [Copy(source, units[0], parameter, to)]
        per_expert = prod(units[0].shapes[parameter].shape)
        first, within = divmod(to.offset, per_expert)
        if to.size[0] > 1 and to.stride[0] == per_expert:  # a fused tensor
            rest, steps = View(to.size[1:], to.stride[1:], within), range(to.size[0])
            return [
                Copy(View(source.size[1:], source.stride[1:], source.offset + i * source.stride[0]), units[first + i], parameter, rest)
                for i in steps
            ]
        return [Copy(source, units[first], parameter, View(to.size, to.stride, within))]


class _CopyRecorder(TorchDispatchMode):
    """Notes every `copy_` between parts of `sources`, by name, and parts of `owners`' parameters; refuses every other one.

    `copies`: by the name of the source (layer, parameter, part of the source, part of the parameter).
    """

    def __init__(self, sources: dict[str, Tensor], owners: dict[int, tuple[str, nn.Module, str]]):
        super().__init__()
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in sources.items()}
        self._owners = owners
        self.copies: dict[str, list[tuple[nn.Module, str, View, View]]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            to, source = args[0], args[1]
            owner = self._owners.get(to.untyped_storage()._cdata)
            name = self._names.get(source.untyped_storage()._cdata)
            if owner is None or name is None or to.shape != source.shape:
                raise RunError(
                    f"vLLM does not only copy a tensor into {f'{owner[0]}.{owner[2]}' if owner else 'what is no parameter'}",
                    f"it computes something of it ({name or 'a temporary tensor'}, {list(source.shape)} into {list(to.shape)})",
                    "set rollout.direct_load=false: weights are then loaded by vLLM's own code",
                )
            noted = (owner[1], owner[2], _view(source), _view(to))
            if source.numel():
                self.copies.setdefault(name, []).append(noted)
            return to  # vLLM leaves data in a bias
        return func(*args, **(kwargs or {}))


def _view(tensor: Tensor) -> View:
    return View(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
