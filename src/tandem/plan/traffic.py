"""Bytes that a training rank sends in one step, by group of ranks, and which part of them leaves the node.

A ring all-gather or reduce-scatter of B bytes over n ranks sends B (n - 1) / n from each. Counted for the rank of the busiest stage.
"""

from dataclasses import dataclass

from tandem.plan.activations import Setting
from tandem.plan.batch import MicroBatch
from tandem.plan.states import GRAD_BYTES


@dataclass(frozen=True)
class Traffic:
    """Bytes a rank sends in a step, of a publication all ranks together; `off_node` of them to other nodes."""

    group: str
    size: int
    num_bytes: int
    off_node: int


def step_traffic(setting: Setting, batch: MicroBatch, num_batches: int, dense: int, experts: int) -> list[Traffic]:
    """Of one optimizer step of `num_batches` micro-batches like `batch`. Args: dense, experts: trained parameters of the rank."""
    s, layout, e = setting.shapes, setting.layout, setting.item
    layers = [kind for chunk in layout.chunks(0, s.num_layers) for kind in (s.layer_types[layer] for layer in chunk)]
    L, S = setting.tokens(batch)
    hidden = L * s.hidden_size * e
    forwards = 2 if setting.recompute == "full" else 1
    # a gather and a scatter in each half of a layer and direction, and the gather of inputs once more for the gradients of weights
    tp = len(layers) * hidden * (4 * forwards + 4 + 2) * _ring(layout.tp)
    attention = layers.count("full_attention")
    keys = 2 * L * s.num_key_value_heads * s.head_dim // layout.tp * e
    swap = L * (2 * s.key_dim + 3 * s.value_dim) // layout.tp * e
    cp = (
        ((forwards + 1) * (attention * keys * (layout.cp - 1) + (len(layers) - attention) * swap * _ring(layout.cp)))
        if layout.cp > 1
        else 0
    )
    routed = S * s.num_experts_per_tok * s.hidden_size * e if s.num_experts else 0
    ep = len(layers) * 2 * (forwards + 1) * routed * _ring(layout.ep)
    boundary = S * s.hidden_size * e * 2 * layout.vpp if layout.pp > 1 else 0
    dp = dense * (GRAD_BYTES + e) * _ring(layout.dp * layout.cp)
    expert_dp = experts * (GRAD_BYTES + e) * _ring(layout.expert_dp)
    amounts = {
        "tp": num_batches * tp, "cp": num_batches * cp, "ep": num_batches * ep, "pp": num_batches * boundary,
        "dp_cp": dp, "expert_dp": expert_dp,
    }  # fmt: skip
    return [_traffic(setting, name, int(amount)) for name, amount in amounts.items()]


def publication_traffic(model_bytes: int, generator_nodes: int, nodes: int) -> Traffic:
    """The whole model to every node that has generators; of what a node needs, the part that other nodes hold comes over the network."""
    return Traffic("publication", generator_nodes, model_bytes * generator_nodes, model_bytes * generator_nodes * (nodes - 1) // nodes)


def _ring(size: int) -> float:
    return (size - 1) / size


def _traffic(setting: Setting, name: str, num_bytes: int) -> Traffic:
    group = setting.layout.groups[name]
    return Traffic(name, group.size, num_bytes, int(num_bytes * group.off_node_share(setting.layout.devices_per_node)))
