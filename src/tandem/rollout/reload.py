"""New weights through vLLM's own layer-by-layer reload, on every device. Imported in vLLM worker processes only."""

import logging
from collections.abc import Iterable

from torch import Tensor, nn
from vllm.config import ModelConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info

# It warns at every update that rotary tables "failed to load"; what did not load is checked, name by name, below.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


class LayerwiseLoader:
    """A layer's tensors may arrive in several buckets; the layer changes when its last one is there."""

    pack_seconds = 0.0  # not known: vLLM packs while it loads

    def __init__(self, model: nn.Module, model_config: ModelConfig):
        self.model, self.model_config = model, model_config
        self.last = "(none yet)"  # the tensor that vLLM's loaders saw last

    def begin(self) -> None:
        self._loaded_parameters: set[str] = set()
        initialize_layerwise_reload(self.model)
        self._parameters = {name for name, _ in self.model.named_parameters()}

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Raises whatever vLLM's loaders raise about a name or a shape. The tensors may be views: what waits is copied."""

        def watched():
            for name, tensor in tensors:
                self.last = f"{name} of shape {list(tensor.shape)}"
                yield name, tensor

        self._loaded_parameters |= self.model.load_weights(watched())
        for layer in self.model.modules():
            for _, call in get_layerwise_info(layer).loaded_weights:
                for name, value in call.arguments.items():
                    if isinstance(value, Tensor) and not value.is_meta:
                        call.arguments[name] = value.clone()

    def incomplete(self) -> list[str]:
        """vLLM's parameters that nothing, or not everything, was loaded into: what must hold whatever names were expected.

        A layer that is still waiting is short of elements. Embeddings always are where vLLM pads the vocabulary; they have one tensor.
        """
        names = self._parameters - self._loaded_parameters
        for prefix, layer in self.model.named_modules():
            if get_layerwise_info(layer).can_load() and not isinstance(layer, VocabParallelEmbedding):
                names |= {f"{prefix}.{name}" for name, _ in layer.named_parameters(recurse=False)}
        return sorted(names)

    def finish(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def abort(self) -> None:
        """Put the tensors that the kernels use back into every layer that has not changed yet, and drop what was buffered for it: every
        layer holds complete weights again, but of two versions, so the worker must not generate."""
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                _place_kernel_tensors(layer, info)
                info.reset()
