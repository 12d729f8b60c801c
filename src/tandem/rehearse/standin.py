"""The small model in the place of the recipe's: every kind of layer, and as many heads, layers and experts as the layout divides."""

from dataclasses import replace
from math import lcm
from pathlib import Path

import numpy as np

from tandem.config.schema import DataConfig, ParallelConfig
from tandem.data.types import Row, Sequence
from tandem.qwen3_5.tiny import SIZES, TinyShape, make_tiny_model

CORPUS = ["What is the area?", "<think>\nthe digit is 7\n</think>\n\n\\boxed{7}", "0123456789 = + * / ( ) 12 34 56"] * 20
IMAGES_AND_RESPONSES = ((0, 1), (1, 5), (2, 17), (0, 40), (1, 64), (0, 90), (2, 3), (1, 30), (0, 33))


def stand_in(parallel: ParallelConfig, dense: bool = False) -> TinyShape:
    """The smallest shape that the layout can cut."""
    shape = SIZES["test"]
    heads = lcm(shape.linear_num_key_heads, parallel.tp * parallel.cp)
    return replace(
        shape,
        num_hidden_layers=lcm(shape.full_attention_interval, parallel.pp * max(parallel.vpp, 1)),
        num_experts=0 if dense else lcm(shape.num_experts, parallel.ep),
        num_attention_heads=lcm(shape.num_attention_heads, parallel.tp),
        linear_num_key_heads=heads,
        linear_num_value_heads=2 * heads,
        moe_intermediate_size=lcm(shape.moe_intermediate_size, parallel.tp, parallel.etp),
        vision_num_heads=lcm(shape.vision_num_heads, parallel.tp),
    )


def write_stand_in(folder: Path, shape: TinyShape) -> Path:
    make_tiny_model(folder, CORPUS, seed=1, size=shape)
    return folder


def make_sequences(model: Path) -> list[Sequence]:
    """Nine prompts with random responses: text, one image, two images of different shapes; lengths from 1 to past a chunk of 64."""
    from tandem.data.demo.sample import encode_png
    from tandem.data.prompts import PromptBuilder

    rng = np.random.default_rng(0)
    builder = PromptBuilder(str(model), DataConfig())
    result = []
    for number, (num_images, num_response) in enumerate(IMAGES_AND_RESPONSES):
        images = [_image(rng, 32 + 16 * (k + number) % 48, 48) for k in range(num_images)]
        content = "<image>" * num_images + "What is the area? " + "12 + " * (number % 4)
        row = Row(f"test.parquet:{number}", "test", [{"role": "user", "content": content}], [encode_png(x) for x in images], "7", {})
        response = rng.integers(0, 256, num_response)
        result.append(Sequence(builder.build(row), response, {"weights": np.ones(num_response, np.float32)}))
    total = sum(len(sequence.response_ids) for sequence in result)
    for sequence in result:
        sequence.fields["weights"] /= total
    return result


def _image(rng: np.random.Generator, width: int, height: int):
    from PIL import Image

    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype="uint8"))
