"""A generator's memory on each of its devices: vLLM's weights, keys and values, recurrent states."""

from dataclasses import dataclass
from functools import cache

from tandem.config.schema import Config
from tandem.plan.batch import longest_sequence
from tandem.plan.layout import Layout
from tandem.plan.parameters import chunk_parameters
from tandem.plan.shapes import Shapes
from tandem.plan.states import ITEM_BYTES

MAX_BATCHED_TOKENS = 8192  # vLLM's default for one forward pass
STATE_BYTES = 4  # recurrent states are fp32


@dataclass(frozen=True)
class Generator:
    """Bytes on one device of a generator."""

    weights: int
    working: int  # of one forward pass: an estimate, vLLM measures it when it starts
    cache: int  # what is left of its share for keys, values and states; below 0: the weights alone are too large
    of_token: int  # keys and values
    of_sequence: int  # states

    @property
    def total(self) -> int:
        return self.weights + self.working + max(0, self.cache)

    def num_sequences(self, length: int) -> int:
        """Sequences of `length` tokens that the cache holds at once."""
        return max(0, self.cache) // (self.of_token * length + self.of_sequence)


def model_len(config: Config) -> int:
    return config.rollout.max_model_len or longest_sequence(config)


def generator(config: Config, shapes: Shapes, device_bytes: int) -> Generator:
    """Args: device_bytes: memory of a device, on CPU of the host; 0: not known, then the cache is that of one wave of sequences."""
    e, tp, s = ITEM_BYTES[config.model.dtype], config.rollout.tp, shapes
    num_full = sum(kind == "full_attention" for kind in s.layer_types)
    kv_heads = max(1, s.num_key_value_heads // tp)  # copied where there are fewer heads than devices
    of_token = num_full * 2 * kv_heads * s.head_dim * e
    conv = (2 * s.key_dim + s.value_dim) // tp * (s.linear_conv_kernel_dim - 1) * e
    state = s.linear_num_value_heads // tp * s.linear_key_head_dim * s.linear_value_head_dim * STATE_BYTES
    of_sequence = (s.num_layers - num_full) * (conv + state)
    tokens = MAX_BATCHED_TOKENS
    routed = tokens * s.num_experts_per_tok * (3 * s.mlp_size // tp + s.hidden_size) if s.num_experts else tokens * 3 * s.mlp_size // tp
    working = e * (routed + 4 * tokens * s.hidden_size) + 3 * 4 * config.rollout.max_num_seqs * s.vocab_size // tp
    weights = weight_bytes(shapes, tp, e)
    wave = config.rollout.max_num_seqs * (of_token * model_len(config) + of_sequence)
    share = int(device_bytes * config.rollout.memory_share) - weights - working if device_bytes else wave
    cache = config.rollout.cache_bytes or share
    return Generator(weights, working, cache, of_token, of_sequence)


@cache
def weight_bytes(s: Shapes, tp: int, e: int) -> int:
    """Of one device: everything is cut among the generator's devices but norms, router and, where heads are fewer, keys and values.

    Args: e: bytes of a number.
    """
    one = Layout(1, 1, tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1)
    cut = whole = 0
    for parameter in chunk_parameters(s, one, range(s.num_layers)):
        if len(parameter.shape) == 1 or ".router." in parameter.name or "gate_weight" in parameter.name or "pos_embed" in parameter.name:
            whole += parameter.numel
        else:
            cut += parameter.numel
    num_full = sum(kind == "full_attention" for kind in s.layer_types)
    copies = num_full * 2 * s.head_dim * s.hidden_size * max(0, tp - s.num_key_value_heads) // tp
    return e * (cut // tp + whole + copies)
