"""Two tiny models of the same shape, and prompts with no, one and two images, one of them longer than a block of vLLM's cache."""

from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> SimpleNamespace:
    """Folders `a` and `b`: one tokenizer, different weights, larger than at initialisation so that a wrong layer shows."""
    from safetensors.torch import load_file, save_file

    from tandem.qwen3_5.tiny import make_tiny_model

    root = tmp_path_factory.mktemp("models")
    corpus = ["What is the sum?", "<think>\nred circle\n</think>\n\n\\boxed{7}", "0123456789 = + * / ( )"] * 20
    for name, seed in (("a", 1), ("b", 2)):
        make_tiny_model(root / name, corpus, seed=seed, size="test")
        file = root / name / "model.safetensors"
        tensors = {key: value * 3 if value.dim() > 1 else value for key, value in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
    assert (root / "a" / "tokenizer.json").read_text() == (root / "b" / "tokenizer.json").read_text()
    return SimpleNamespace(a=root / "a", b=root / "b")


@pytest.fixture(scope="session")
def builder(models):
    from tandem.config.schema import DataConfig
    from tandem.data.prompts import PromptBuilder

    return PromptBuilder(str(models.a), DataConfig())


@pytest.fixture(scope="session")
def banned(builder) -> list[int]:
    """What a run bans, and forty ordinary tokens: enough probability that a wrong mask shows."""
    return builder.banned_token_ids() + list(range(40))


@pytest.fixture(scope="session")
def stops(builder) -> list[int]:
    """What ends a run's responses, and a few ordinary tokens, so that random samples end at all."""
    return builder.stop_token_ids() + list(range(60, 66))


@pytest.fixture(scope="session")
def prompts(builder) -> list:
    import numpy as np

    from tandem.data.demo.sample import encode_png
    from tandem.data.types import Row

    rng = np.random.default_rng(0)
    result = []
    for number, num_images in enumerate([0, 1, 2, 0, 1, 2]):
        images = [encode_png(_image(rng, 32 + 16 * number, 48 + 16 * k)) for k in range(num_images)]
        content = "<image>" * num_images + "What is the sum? " + "12 + " * (50 if number in (3, 4) else number)
        result.append(builder.build(Row(f"test.parquet:{number}", "test", [{"role": "user", "content": content}], images, "7", {})))
    assert len(result[3].token_ids) > 128 and len(result[4].token_ids) > 128
    return result


def _image(rng, width: int, height: int):
    from PIL import Image

    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype="uint8"))
