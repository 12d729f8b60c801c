"""Which experts a CPU engine chose for every token: vLLM's own record of it needs Triton. Imported in vLLM worker processes only.

Choices are kept by the slot that a token has in the attention cache, so that a request that finds its prompt's prefix in the cache finds
the experts of that prefix too.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.v1.kv_cache_interface import FullAttentionSpec


class RoutingRecorder:
    """Follows `runner` (vLLM's V1 model runner) from now on.

    `shape`: (layers, k).
    """

    def __init__(self, runner: Any):
        experts = sorted((module for module in runner.model.modules() if isinstance(module, MoERunner)), key=lambda module: module.layer_id)
        assert experts and [module.layer_id for module in experts] == list(range(len(experts))), "every layer of the model has experts"
        self.shape = len(experts), experts[0].router.top_k
        self._runner = runner
        self._step = torch.full((runner.max_num_tokens, *self.shape), -1, dtype=torch.int16)  # of the tokens of one step
        self._known: dict[str, np.ndarray] = {}  # request -> [tokens, layers, k]
        config = runner.kv_cache_config
        group = next(i for i, group in enumerate(config.kv_cache_groups) if isinstance(group.kv_cache_spec, FullAttentionSpec))
        self._table = runner.input_batch.block_table.block_tables[group]
        blocks_each = config.kv_cache_groups[group].kv_cache_spec.block_size // self._table.block_size
        self._slots = np.full((config.num_blocks * blocks_each * self._table.block_size, *self.shape), -1, np.int16)
        for layer, module in enumerate(experts):
            module.router.set_capture_fn(partial(self._capture, layer))
        self._stock = runner.execute_model
        runner.execute_model = self._execute_model

    def _capture(self, layer: int, topk_ids: Tensor) -> None:
        self._step[: len(topk_ids), layer] = topk_ids

    def _execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._stock(scheduler_output, *args, **kwargs)
        batch, row = self._runner.input_batch, 0
        for index, request_id in enumerate(batch.req_ids):
            num_tokens = scheduler_output.num_scheduled_tokens.get(request_id, 0)
            if num_tokens:
                first = int(batch.num_computed_tokens_cpu[index])
                self._note(index, external(request_id), first, self._step[row : row + num_tokens].numpy())
                row += num_tokens
        return result

    def _note(self, index: int, name: str, first: int, choices: np.ndarray) -> None:
        """`choices` [n, layers, k] of the request's tokens from `first` on; what came before that is not known was in the cache."""
        known = self._known.get(name, choices[:0])[:first]
        slots = self._slot_numbers(index, first + len(choices))
        self._slots[slots[first:]] = choices
        self._known[name] = np.concatenate([known, self._slots[slots[len(known) :]]])

    def _slot_numbers(self, index: int, end: int) -> np.ndarray:
        """Of the first `end` tokens of the batch's request `index`, [end]."""
        positions, size = np.arange(end), self._table.block_size
        return self._table.block_table.np[index, positions // size].astype(np.int64) * size + positions % size

    def forget(self) -> None:
        """As the caches are: what is in a slot is of no token any more, and requests that were given up are not taken."""
        self._known.clear()
        self._slots.fill(-1)

    def take(self, names: list[str]) -> dict[str, np.ndarray]:
        """{request: [tokens, layers, k] int16} of finished requests; they are forgotten here."""
        return {name: self._known.pop(name) for name in names}


def external(request_id: str) -> str:
    """The id that a request was added with; vLLM adds random letters."""
    return request_id.rpartition("-")[0] or request_id
