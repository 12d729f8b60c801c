"""Fixtures shared by the tests: a tiny model folder and prompts made with its own processor, once a session."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("tandem", deadline=None, derandomize=True)  # a busy machine is slow, and CI repeats what it did
hypothesis.settings.load_profile("tandem")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A random Qwen3.5-MoE of every layer kind, heads and experts enough to split, as a Hugging Face folder."""
    from tandem.qwen3_5.tiny import make_tiny_model

    folder = tmp_path_factory.mktemp("tiny") / "model"
    corpus = ["What is the area?", "<think>\nthe digit is 7\n</think>\n\n\\boxed{7}", "0123456789 = + * / ( ) 12 34 56"] * 20
    make_tiny_model(folder, corpus, seed=1, size="test")
    return folder


@pytest.fixture(scope="session")
def sequences(tiny_model) -> list:
    """Nine prompts with random responses: text, one image, two images of different shapes; lengths from a few tokens past a chunk of 64."""
    import numpy as np

    from tandem.config.schema import DataConfig
    from tandem.data.demo.sample import encode_png
    from tandem.data.prompts import PromptBuilder
    from tandem.data.types import Row, Sequence

    rng = np.random.default_rng(0)
    builder = PromptBuilder(str(tiny_model), DataConfig())
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
