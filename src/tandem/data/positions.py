"""3-axis rope positions of one sequence, as Qwen3.5's `get_rope_index` (transformers) assigns them.

Text advances all three axes by one a token. An image of h x w tokens starting at p has time p, height p + row, width p + column, and the
text after it goes on from p + max(h, w).
"""

import numpy as np


def rope_positions(
    token_ids: np.ndarray, image_token_id: int, image_grid_thw: np.ndarray | None, merge_size: int
) -> tuple[np.ndarray, int]:
    """Positions of `token_ids` and the position of the token after them.

    Args:
        token_ids: [T] int64, image pads expanded.
        image_token_id: the pad that stands for one merged patch.
        image_grid_thw: [I, 3] int64, patches of each image along time, height and width; None without images.
        merge_size: patches along one side of a token.

    Returns:
        [3, T] int64 and the next position, the same on the three axes.

    Raises:
        ValueError: the runs of image pads are not those of `image_grid_thw`.
    """
    grids = np.zeros((0, 3), np.int64) if image_grid_thw is None else image_grid_thw
    is_image = token_ids == image_token_id
    starts = np.flatnonzero(is_image & ~np.concatenate([[False], is_image[:-1]]))
    ends = np.flatnonzero(is_image & ~np.concatenate([is_image[1:], [False]])) + 1
    found, expected = (ends - starts).tolist(), (grids.prod(axis=1) // merge_size**2).tolist()
    if found != expected:
        raise ValueError(f"runs of image pads {found} differ from the images' tokens {expected}")

    pieces, position, done = [], 0, 0
    for start, end, (time, height, width) in zip(starts, ends, grids):
        height, width = height // merge_size, width // merge_size
        pieces.append(_text(position, start - done))
        position += start - done
        axes = np.meshgrid(np.arange(time), np.arange(height), np.arange(width), indexing="ij")
        pieces.append(position + np.stack(axes).reshape(3, -1))
        position += max(height, width)
        done = end
    pieces.append(_text(position, len(token_ids) - done))
    return np.concatenate(pieces, axis=1), int(position + len(token_ids) - done)


def _text(start: int, length: int) -> np.ndarray:
    return np.broadcast_to(start + np.arange(length), (3, length))
