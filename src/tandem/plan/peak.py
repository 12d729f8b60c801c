"""The most that an update has on a training rank beside its states: what is kept for backward passes plus what is being worked on."""

from collections.abc import Iterator
from dataclasses import dataclass

from tandem.plan.activations import (
    FP32,
    Setting,
    attention_bytes,
    chunk_bytes,
    experts_bytes,
    input_bytes,
    layer_bytes,
    norm,
)
from tandem.plan.batch import MicroBatch
from tandem.plan.delta import segment_size, segments, working_floats
from tandem.plan.parameters import Parameter
from tandem.plan.pipeline import moments
from tandem.plan.states import GRAD_BYTES

CHUNK_BYTES = 128 << 20  # of one chunk's fp32 logits, as in qwen3_5/scores.py


@dataclass(frozen=True)
class Peak:
    """Bytes on a training rank beside weights, gradients and optimizer."""

    kept: int  # for backward passes, at most
    logits: int  # being worked on for the scores of one micro-batch
    total: int  # at most, at one time


def update_peak(setting: Setting, stage: int, batches: list[MicroBatch]) -> Peak:
    """Of one optimizer step over `batches`, the micro-batches of the rank."""
    layers = setting.layout.chunks(stage, setting.shapes.num_layers)
    kept_by = [[chunk_bytes(setting, chunk, batch) for batch in batches] for chunk in layers]
    kept = total = logits = 0
    for flying, (chunk, batch) in moments(setting.layout, stage, len(batches)):
        now = sum(kept_by[c][b] for c, b in flying)
        kept = max(kept, now)
        if layers[chunk].stop == setting.shapes.num_layers:
            logits = max(logits, score_bytes(setting, batches[batch]))
            total = max(total, now + score_bytes(setting, batches[batch]))
        total = max(total, *(now + extra for extra in backward_extra(setting, layers[chunk], batches[batch])))
    return Peak(kept, logits, total)


def inference_peak(setting: Setting, stage: int, batch: MicroBatch) -> int:
    """Bytes of scoring one micro-batch without gradients: one layer at a time, and the logits."""
    layers = setting.layout.chunks(stage, setting.shapes.num_layers)
    one_layer = max(layer_bytes(setting, kind, batch, "none") for kind in set(setting.shapes.layer_types))
    last = layers[-1].stop == setting.shapes.num_layers
    vision = _vision_block(setting, batch) if layers[0].start == 0 else 0
    return input_bytes(setting, batch) + max(one_layer, vision, score_bytes(setting, batch, backward=False) if last else 0)


def score_bytes(setting: Setting, batch: MicroBatch, backward: bool = True) -> int:
    """Worked on at once by `token_scores`.

    Forward: a chunk's logits, their bounded copy and its exponential. Backward: a chunk's logits, once more in the model's dtype, and the
    gradients of weight and hidden states.
    """
    rows, e = setting.shapes.vocab_size // setting.layout.tp, setting.item
    L, _ = setting.tokens(batch)
    chunk = min(L, max(1, CHUNK_BYTES // (FP32 * rows)))
    copy = 0 if e == FP32 else e
    forward = 3 * FP32 * chunk * rows
    gradients = (rows + L) * setting.shapes.hidden_size * e
    return max(forward, gradients + (FP32 + copy) * chunk * rows) if backward else forward


def backward_extra(setting: Setting, layers: range, batch: MicroBatch) -> Iterator[int]:
    """For each layer, last one first: bytes over those kept when the chunk's backward pass begins. Negative once much has been freed."""
    s, freed = setting.shapes, 0
    for layer in reversed(layers):
        kind = s.layer_types[layer]
        of_layer = layer_bytes(setting, kind, batch, setting.recompute)
        again = layer_bytes(setting, kind, batch, "none") - of_layer
        yield again + _layer_work(setting, kind, batch) - freed
        freed += of_layer
    if layers.start == 0 and batch.num_image_tokens and not setting.freeze_vision:
        yield _vision_block(setting, batch) - freed


def _layer_work(setting: Setting, kind: str, batch: MicroBatch) -> int:
    """Gradients and scratch on top of a layer's own activations: of its second half, or of the first when the second is freed."""
    s, e, layout = setting.shapes, setting.item, setting.layout
    _, S = setting.tokens(batch)
    residual = S * s.hidden_size * e
    if s.num_experts:
        rows = S * s.num_experts_per_tok * layout.etp
        half = residual + 2 * rows * s.hidden_size * e
        second = experts_bytes(setting, batch) if setting.recompute != "selective" else 0
    else:
        L, _ = setting.tokens(batch)
        half, second = residual + 3 * L * s.mlp_size // layout.tp * e, 5 * L * s.mlp_size // layout.tp * e
    if setting.recompute == "selective":
        half += experts_bytes(setting, batch) if s.num_experts else 0
    freed = second + norm(setting, S, s.hidden_size)
    mixer = attention_work(setting, batch) if kind == "full_attention" else delta_work(setting, batch)
    return max(half, residual + mixer - freed)


def attention_work(setting: Setting, batch: MicroBatch) -> int:
    """Gradients of output, queries, keys and values; under selective recompute attention's own output once more."""
    s, e, tp, cp = setting.shapes, setting.item, setting.layout.tp, setting.layout.cp
    L, query = batch.num_tokens // cp, s.num_attention_heads * s.head_dim // tp
    keys = s.num_key_value_heads * s.head_dim // tp
    again = (
        attention_bytes(setting, batch, "none") - attention_bytes(setting, batch, "selective") if setting.recompute == "selective" else 0
    )
    return again + L * e * (3 * query) + batch.num_tokens * e * 2 * keys * (2 if cp > 1 else 1)


def delta_work(setting: Setting, batch: MicroBatch) -> int:
    """Gradients of the rule's output and inputs, and the largest segment's scratch."""
    s, split = setting.shapes, setting.layout.tp * setting.layout.cp
    heads, value, conv = s.linear_num_value_heads // split, s.value_dim // split, (2 * s.key_dim + s.value_dim) // split
    size = segment_size(setting.on_cpu, s.linear_num_value_heads * (s.linear_key_head_dim + s.linear_value_head_dim))
    chunks = max(count for _, count in segments(batch.lengths, size))
    scratch = FP32 * heads * working_floats(chunks, size[0], s.linear_key_head_dim, s.linear_value_head_dim)
    return batch.num_tokens * (setting.item * (value + conv) + 2 * FP32 * heads) + scratch


def _vision_block(setting: Setting, batch: MicroBatch) -> int:
    """One block of the tower: its gradients, and under full recompute its activations too."""
    v, e = setting.shapes.vision, setting.item
    N = batch.num_image_tokens * v.patches_of_token
    work = N * e * (4 * v.hidden_size + v.intermediate_size)
    return work + (N * e * (11 * v.hidden_size + 2 * v.intermediate_size) if setting.recompute == "full" else 0)


def step_bytes(chunks: list[list[Parameter]], num_shards: int, *, on_cpu: bool, fused: bool) -> int:
    """Scratch when all gradients are there: of their reduction, then of the optimizer's step. Nothing else is kept by then.

    gloo reduces a copy of each buffer, dense weights' or experts'; the accelerators' libraries reduce in place. torch's AdamW makes two
    tensors of a shard's size, one parameter at a time on CPU, all at once elsewhere; fused optimizers, and ours in host memory, make none.
    """
    if not on_cpu:
        trained = sum(parameter.numel for chunk in chunks for parameter in chunk if not parameter.frozen)
        return 0 if fused else 2 * FP32 * -(-trained // num_shards)
    buffers = [sum(p.numel for p in chunk if not p.frozen and p.expert == expert) for chunk in chunks for expert in (False, True)]
    step = 0 if fused else 2 * FP32 * largest_slice(chunks, num_shards)
    return max(GRAD_BYTES * max(buffers), step)


def largest_slice(chunks: list[list[Parameter]], num_shards: int) -> int:
    """Elements of a parameter that one data-parallel rank updates, at most."""
    trained = [parameter.numel for chunk in chunks for parameter in chunk if not parameter.frozen]
    return min(max(trained, default=0), -(-sum(trained) // num_shards))
