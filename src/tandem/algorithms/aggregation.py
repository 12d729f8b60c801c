"""How the losses of all tokens become one number: a weight for each token, computed once for the whole mini-batch.

The loss is the weighted sum over all tokens, wherever they are computed, so no split into micro-batches or ranks changes it.
"""

from typing import Literal

import numpy as np


def token_weights(lengths_B: np.ndarray, mode: Literal["token_mean", "sequence_mean", "constant"], max_response_length: int) -> np.ndarray:
    """[B] float64: the weight of every token of each sequence.

    token_mean: 1 / all tokens (DAPO); sequence_mean: 1 / (B * length), each sequence counts the same (GRPO's paper);
    constant: 1 / (B * max_response_length), no length appears (Dr. GRPO). An empty response has no token to weigh; any weight will do.
    """
    num_sequences = len(lengths_B)
    if mode == "token_mean":
        return np.full(num_sequences, 1.0 / max(1, lengths_B.sum()))
    if mode == "sequence_mean":
        return 1.0 / (num_sequences * np.maximum(lengths_B, 1))
    return np.full(num_sequences, 1.0 / (num_sequences * max_response_length))
