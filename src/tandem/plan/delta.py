"""The gated delta rule's segments: which states are kept between forward and backward, and how much one segment works on.

The numbers are those of `qwen3_5/gated_delta.py`, which the plan cannot import because it is torch; a test compares them.
"""

from functools import cache

ACCELERATOR_SEGMENT, CPU_CHUNK, CPU_WIDTH = (64, 64, 128), 32, 4096


def segment_size(on_cpu: bool, width: int) -> tuple[int, int, int]:
    """Tokens of a chunk, the most sequences and the most chunks of a segment. Args: width: heads * (key dim + value dim), uncut."""
    if not on_cpu:
        return ACCELERATOR_SEGMENT
    max_chunks = max(8, CPU_WIDTH // width)
    return CPU_CHUNK, max_chunks // 4, max_chunks


@cache
def segments(lengths: tuple[int, ...], size: tuple[int, int, int]) -> list[tuple[int, int]]:
    """(sequences, chunks) of each segment; the states of its sequences before it are kept."""
    chunk, max_sequences, max_chunks = size
    num_chunks = sorted((-(-length // chunk) for length in lengths), reverse=True)
    found: list[tuple[int, int]] = []
    for first in range(0, len(num_chunks), max_sequences):
        group = num_chunks[first : first + max_sequences]
        steps: list[int] = []
        for step in range(group[0]):
            steps.append(sum(n > step for n in group))
            if sum(steps) + steps[-1] > max_chunks or step + 1 == group[0]:
                found.append((steps[0], sum(steps)))
                steps = []
    return found


def working_floats(num_chunks: int, chunk: int, key_dim: int, value_dim: int) -> int:
    """fp32 numbers alive at once in the backward pass of one segment, a head.

    Keys: rows, rows weighted, keys weighted, gradients of rows and keys, one product of the rows' size. Values: values, written values and
    their gradient, gradients of rows. Pairs of a chunk's tokens: rows with keys, decay, inverse, gradient of the rows'. A state a chunk.
    """
    keys, values, pairs = 10 * chunk * key_dim, 5 * chunk * value_dim, 6 * chunk * chunk
    return num_chunks * (keys + values + pairs + key_dim * value_dim)
