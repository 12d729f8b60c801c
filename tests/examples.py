"""Inputs shared by tests and benchmarks: a tiny model folder, and sequences made with its own processor."""

from pathlib import Path


def write_tiny_model(folder: Path, size: str, **options) -> Path:
    """A random model of one of `tandem.qwen3_5.tiny.SIZES`; returns `folder`."""
    from tandem.qwen3_5.tiny import make_tiny_model

    corpus = ["What is the area?", "<think>\nthe digit is 7\n</think>\n\n\\boxed{7}", "0123456789 = + * / ( ) 12 34 56"] * 20
    make_tiny_model(folder, corpus, seed=1, size=size, **options)
    return folder


def make_sequences(model: Path) -> list:
    """Nine prompts with random responses: text, one image, two images of different shapes; lengths from a few tokens past a chunk of 64."""
    import numpy as np

    from tandem.config.schema import DataConfig
    from tandem.data.demo.sample import encode_png
    from tandem.data.prompts import PromptBuilder
    from tandem.data.types import Row, Sequence

    rng = np.random.default_rng(0)
    builder = PromptBuilder(str(model), DataConfig())
    result = []
    for number, (num_images, num_response) in enumerate([(0, 1), (1, 5), (2, 17), (0, 40), (1, 64), (0, 90), (2, 3), (1, 30), (0, 33)]):
        images = [_image(rng, 32 + 16 * (k + number) % 48, 48) for k in range(num_images)]
        content = "<image>" * num_images + "What is the area? " + "12 + " * (number % 4)
        row = Row(f"test.parquet:{number}", "test", [{"role": "user", "content": content}], [encode_png(x) for x in images], "7", {})
        response = rng.integers(0, 256, num_response)
        fields = {"weights": np.ones(num_response, np.float32)}
        result.append(Sequence(builder.build(row), response, fields))
    total = sum(len(s.response_ids) for s in result)
    for sequence in result:
        sequence.fields["weights"] /= total
    return result


def _image(rng, width: int, height: int):
    from PIL import Image

    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype="uint8"))
