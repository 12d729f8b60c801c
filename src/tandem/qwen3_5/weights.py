"""The weight map: Hugging Face names <-> Megatron names, as a table, for the part of the model that a rank holds.

    entries = weight_map(chunk)        # of this rank
    load(chunk, source)                # Hugging Face -> Megatron
    for name, tensor in tensors(chunks): ...   # Megatron -> Hugging Face, streamed

Experts are named one by one (`experts.7.gate_proj.weight`), whether a checkpoint stores them so or fused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from megatron.core import parallel_state
from torch import Tensor
from transformers import AutoModel

from tandem.errors import UserError
from tandem.qwen3_5.checkpoint import EMBEDDING, OUTPUT
from tandem.qwen3_5.config import is_moe
from tandem.qwen3_5.model import Qwen3_5Model
from tandem.qwen3_5.rules import Columns, GatedQKV, HeadMajor, Rows, Rule, Stacked, Whole

TEXT = "model.language_model."


# Parameters that enter the arithmetic in fp32 and that the published folders store so, in the midst of bf16: rounded they would be others.
VALUE_HEAD = ("value_head.weight", "value_head.bias")  # a critic's, which is not a part of any Hugging Face folder
FP32 = ("self_attention.A_log", "self_attention.out_norm.weight")


GATHER_BYTES = 4 << 20


class TensorSource(Protocol):
    """Where Hugging Face tensors come from; `get` raises UserError when there is no such tensor."""

    def get(self, name: str) -> Tensor: ...


@dataclass(frozen=True)
class Entry:
    megatron: str
    hf: tuple[str, ...]
    rule: Rule
    expert: bool = False  # sharded by the expert groups instead of the dense ones


def weight_map(chunk: Qwen3_5Model) -> list[Entry]:
    """Entries of every parameter of this model chunk, in the order of the layers."""
    text, grouped, entries = chunk.hf_config.text_config, chunk.config.moe_grouped_gemm, []
    experts = _local_experts(text)
    if chunk.pre_process:
        entries.append(Entry("embedding.word_embeddings.weight", (EMBEDDING,), Rows()))
        entries += _vision_map(chunk)
    for index, layer in enumerate(chunk.decoder.layers):
        number = layer.layer_number - 1
        entries += _layer_map(text, f"decoder.layers.{index}.", f"{TEXT}layers.{number}.", number, experts, grouped)
    if chunk.post_process:
        entries.append(Entry("decoder.final_layernorm.weight", (TEXT + "norm.weight",), Whole()))
        if chunk.is_critic:
            entries += [Entry(name, (name,), Whole()) for name in VALUE_HEAD]
        elif not chunk.share_embeddings_and_output_weights:
            entries.append(Entry("output_layer.weight", (OUTPUT,), Rows()))
        elif not chunk.pre_process:
            entries.append(Entry("output_layer.weight", (EMBEDDING,), Rows()))
    return entries


def _vision_map(chunk: Qwen3_5Model) -> list[Entry]:
    """The tower's own names; rules by the end of the name, where the tower is cut."""
    cut: dict[str, Rule] = {}
    if chunk.visual.cut:
        fc1, fc2 = dict.fromkeys(("linear_fc1.weight", "linear_fc1.bias"), Rows()), {"linear_fc2.weight": Columns()}
        qkv = dict.fromkeys(("qkv.linear.weight", "qkv.linear.bias"), HeadMajor(chunk.hf_config.vision_config.num_heads))
        cut = {**fc1, **fc2, **qkv, "proj.weight": Columns()}
    entries = []
    for name, _ in chunk.visual.model.named_parameters():
        rule = next((rule for end, rule in cut.items() if name.endswith("." + end) and not name.startswith("patch_embed.")), Whole())
        entries.append(Entry("visual.model." + name, ("model.visual." + name.replace("qkv.linear.", "qkv."),), rule))
    return entries


def _layer_map(text, m: str, h: str, layer: int, experts: range, grouped: bool = False) -> list[Entry]:
    heads, groups, dim = text.num_attention_heads, text.num_key_value_heads, text.head_dim
    key_rows = text.linear_num_key_heads * text.linear_key_head_dim
    value_rows = text.linear_num_value_heads * text.linear_value_head_dim
    scalars = text.linear_num_value_heads
    qkv_rows = (key_rows, key_rows, value_rows)
    ma, ha, hd = m + "self_attention.", h + "self_attn.", h + "linear_attn."
    table = [
        (m + "input_layernorm.weight", (h + "input_layernorm.weight",), Whole()),
        (m + "pre_mlp_layernorm.weight", (h + "post_attention_layernorm.weight",), Whole()),
    ]
    if text.layer_types[layer] == "full_attention":
        table += [
            (ma + "linear_qkv.weight", tuple(ha + f"{x}_proj.weight" for x in "qkv"), GatedQKV(heads, groups, dim)),
            (ma + "linear_proj.weight", (ha + "o_proj.weight",), Columns()),
            (ma + "q_layernorm.weight", (ha + "q_norm.weight",), Whole()),
            (ma + "k_layernorm.weight", (ha + "k_norm.weight",), Whole()),
        ]
    else:
        in_proj = tuple(hd + f"in_proj_{x}.weight" for x in ("qkv", "z", "b", "a"))
        table += [
            (ma + "in_proj.weight", in_proj, Stacked((qkv_rows, (value_rows,), (scalars,), (scalars,)))),
            (ma + "conv1d.weight", (hd + "conv1d.weight",), Stacked((qkv_rows,))),
            (ma + "A_log", (hd + "A_log",), Rows()),
            (ma + "dt_bias", (hd + "dt_bias",), Rows()),
            (ma + "out_norm.weight", (hd + "norm.weight",), Whole()),
            (ma + "out_proj.weight", (hd + "out_proj.weight",), Columns()),
        ]
    entries = [Entry(*row) for row in table]
    if not is_moe(text):
        return entries + _mlp_map(text.intermediate_size, m + "mlp.{}.weight", h + "mlp.")
    return entries + _moe_map(text, m, h, experts, grouped)


def _mlp_map(rows: int, megatron: str, h: str, expert: bool = False) -> list[Entry]:
    """`megatron`: name of a weight with {} in the place of the linear's."""
    return [
        Entry(megatron.format("linear_fc1"), (h + "gate_proj.weight", h + "up_proj.weight"), Stacked(((rows,), (rows,))), expert),
        Entry(megatron.format("linear_fc2"), (h + "down_proj.weight",), Columns(), expert),
    ]


def _moe_map(text, m: str, h: str, experts: range, grouped: bool) -> list[Entry]:
    """`grouped`: one module holds all experts of the rank, as fused layers have it."""
    entries = [
        Entry(m + "mlp.router.weight", (h + "mlp.gate.weight",), Whole()),
        Entry(m + "mlp.shared_experts.gate_weight", (h + "mlp.shared_expert_gate.weight",), Whole()),
        *_mlp_map(text.shared_expert_intermediate_size, m + "mlp.shared_experts.{}.weight", h + "mlp.shared_expert."),
    ]
    width = text.moe_intermediate_size
    for local, expert in enumerate(experts):
        megatron = f"{m}mlp.experts.{{}}.weight{local}" if grouped else f"{m}mlp.experts.local_experts.{local}.{{}}.weight"
        entries += _mlp_map(width, megatron, f"{h}mlp.experts.{expert}.", expert=True)
    return entries


def _local_experts(text) -> range:
    """Those that this rank holds; empty of a dense model."""
    num_local = getattr(text, "num_experts", 0) // parallel_state.get_expert_model_parallel_world_size()
    first = parallel_state.get_expert_model_parallel_rank() * num_local
    return range(first, first + num_local)


def model_names(hf_config) -> set[str]:
    """Hugging Face names of every tensor of the model that a config describes, those of all ranks; needs no process groups."""
    text = hf_config.text_config
    with torch.device("meta"):
        vision = AutoModel.from_config(hf_config.vision_config)
    names = {EMBEDDING, TEXT + "norm.weight"} | {"model.visual." + name for name, _ in vision.named_parameters()}
    for layer in range(text.num_hidden_layers):
        entries = _layer_map(text, "", f"{TEXT}layers.{layer}.", layer, range(getattr(text, "num_experts", 0)))
        names |= {name for entry in entries for name in entry.hf}
    return names if hf_config.tie_word_embeddings else names | {OUTPUT}


def _group(entry: Entry) -> torch.distributed.ProcessGroup:
    """The group among which the entry's parameter is cut."""
    return parallel_state.get_expert_tensor_parallel_group() if entry.expert else parallel_state.get_tensor_model_parallel_group()


def load(chunk: Qwen3_5Model, source: TensorSource) -> None:
    """`loading`, to its end."""
    for _ in loading(chunk, source):
        pass


@torch.no_grad()
def loading(chunk: Qwen3_5Model, source: TensorSource) -> Iterator[str]:
    """Fill every parameter of the chunk from Hugging Face tensors, cast to the parameter's dtype, one entry at a time, this rank's part.
    Yields the name of each that is filled.

    A parameter of `FP32` gets that dtype where the folder has it; this comes before anything that looks at dtypes is made of the chunk.

    Raises:
        UserError: a tensor is missing or has another shape than the config says.
    """
    parameters = dict(chunk.named_parameters())
    entries = weight_map(chunk)
    assert {entry.megatron for entry in entries} == set(parameters), {entry.megatron for entry in entries} ^ set(parameters)
    for entry in entries:
        group, parameter = _group(entry), parameters[entry.megatron]
        found = [source.get(name) for name in entry.hf]
        expected = entry.rule.merge([torch.empty_like(parameter, device="meta")] * group.size())
        for name, tensor, model in zip(entry.hf, found, expected):
            if tensor.shape != model.shape:
                raise UserError(
                    f"{name} has shape {list(tensor.shape)}",
                    f"the model's config asks for {list(model.shape)}",
                    "use the config.json that belongs to these weights",
                )
        if entry.megatron.endswith(FP32) and found[0].dtype == torch.float32:
            parameter.data = parameter.data.float()
        parameter.copy_(entry.rule.split(found, group.rank(), group.size()))
        yield entry.megatron


@torch.no_grad()
def copy(chunk: Qwen3_5Model, source: Qwen3_5Model) -> None:
    """Fill every parameter of a critic's chunk from that of the policy on the same rank, in its dtype; the value head stays as it is."""
    theirs = dict(source.named_parameters())
    for name, parameter in chunk.named_parameters():
        if name not in VALUE_HEAD:
            parameter.data = theirs[name].detach().clone()


@torch.no_grad()
def tensors(chunks: list[Qwen3_5Model]) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face tensors of which this rank is the one to publish; views of parameters where a parameter is all of a tensor.

    Collective over each tensor-parallel group of the first data-parallel replica: all its ranks must drain their iterators. Together the
    ranks yield every tensor of the model exactly once. Beyond the parameters GATHER_BYTES are alive, or one entry.
    """
    seen = set()
    for chunk in chunks:
        parameters = {name: parameter.detach() for name, parameter in chunk.named_parameters()}
        for window in _windows(_published(chunk), parameters):
            for entry, shards in zip(window, _gathered(window, parameters)):
                if _group(entry).rank() == 0:
                    for name, tensor in zip(entry.hf, entry.rule.merge(shards)):
                        assert name not in seen, name
                        seen.add(name)
                        yield name, tensor


def num_tensors(chunks: list[Qwen3_5Model]) -> int:
    """How many `tensors` yields on this rank."""
    return sum(len(entry.hf) for chunk in chunks for entry in _published(chunk) if _group(entry).rank() == 0)


def _published(chunk: Qwen3_5Model) -> Iterator[Entry]:
    """Entries that this rank or its tensor-parallel group publishes."""
    for entry in weight_map(chunk):
        if entry.expert:
            replica = parallel_state.get_expert_data_parallel_rank()
        else:
            replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        # the output weight tied to the embedding on another stage is published there
        tied_copy = entry.megatron == "output_layer.weight" and entry.hf[0] != OUTPUT
        if replica == 0 and not tied_copy:
            yield entry


def _is_cut(entry: Entry) -> bool:
    return _group(entry).size() > 1 and not isinstance(entry.rule, Whole)


def _windows(entries: Iterator[Entry], parameters: dict[str, Tensor]) -> Iterator[list[Entry]]:
    """Consecutive entries whose cut ones are gathered together: a collective for each would cost more than its bytes."""
    window, num_bytes = list[Entry](), 0
    for entry in entries:
        size = parameters[entry.megatron].nbytes * _group(entry).size() if _is_cut(entry) else 0
        if num_bytes + size > GATHER_BYTES:
            yield window
            window, num_bytes = [], 0
        window.append(entry)
        num_bytes += size
    if window:
        yield window


def _gathered(window: list[Entry], parameters: dict[str, Tensor]) -> list[list[Tensor]]:
    """The shards of each entry; on ranks other than the first of its group, any. One collective for each group and dtype."""
    together: dict[tuple[Any, torch.dtype], list[int]] = {}
    shards = [[parameters[entry.megatron]] for entry in window]
    for index, entry in enumerate(window):
        if _is_cut(entry):
            together.setdefault((_group(entry), shards[index][0].dtype), []).append(index)
    for (group, _), indices in together.items():
        mine = torch.cat([shards[index][0].reshape(-1) for index in indices])
        if torch.distributed.get_backend(group) == "gloo":  # to all would double the work of cores that both ranks may share
            flat = [torch.empty_like(mine) for _ in range(group.size())] if group.rank() == 0 else [mine]
            torch.distributed.gather(mine, flat if group.rank() == 0 else None, group=group, group_dst=0)
        else:
            flat = [torch.empty_like(mine) for _ in range(group.size())]
            torch.distributed.all_gather(flat, mine, group=group)
        sizes = [shards[index][0].numel() for index in indices]
        for index, parts in zip(indices, zip(*(every.split(sizes) for every in flat))):
            shape = shards[index][0].shape
            shards[index] = [part.view(shape) for part in parts]
    return shards
