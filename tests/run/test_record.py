"""What a step leaves of its samples: every figure under its own name, pictures once and within their limit."""

from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tandem.data.types import Prompt, Row
from tandem.rollout.types import Completion
from tandem.run.pictures import COPIES_A_STEP, KEPT_AS_IT_IS, LONGEST_SIDE, ImageStore, kind_of
from tandem.run.record import rollout_rows
from tandem.run.samples import Sample
from tandem.track.rollouts import as_rows, read_table, write_rollouts


def encoded(size: tuple[int, int], kind: str, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def sample(number: int, images: list[bytes]) -> Sample:
    row = Row("rows:3", "digits", [{"role": "user", "content": "<image>?"}], images, "7", {})
    prompt = Prompt(row, np.arange(5), np.zeros((3, 5), np.int64), 5, None, None, "<think>\n", "<|im_start|>user\n?")
    completion = Completion(np.array([4, 5]), np.array([-0.5, -0.25], np.float32), "seven", "stop", 6)
    return Sample(
        *(prompt, 2, number, completion), reward=0.5, accuracy=0.125, format=0.25, reason="wrong", also={"short": 0.75},
        length_penalty=-0.0625, kl_penalty=-0.03125, advantage=1.5, trainer_logprobs=np.array([-0.5, -0.75], np.float32),
    )  # fmt: skip


def test_every_figure_of_a_sample_is_read_again_under_its_own_name(tmp_path) -> None:
    picture = encoded((4, 4), "PNG")
    store = ImageStore(tmp_path, 1 << 20)
    rows = rollout_rows([sample(0, [picture]), sample(1, [picture])], lambda ids: [f"<{token}>" for token in ids], store)
    first, second = as_rows(read_table(write_rollouts(tmp_path, 7, rows)))
    (name,) = first.pop("images")
    assert (store.folder / name).read_bytes() == picture
    assert (first.pop("sample"), second["sample"]) == (0, 1)
    assert first == {
        "step": 7, "row_id": "rows:3", "data_source": "digits", "group": 2, "prompt_text": "<image>?",
        "prompt_rendered": "<|im_start|>user\n?", "prompt_tokens": 5, "ground_truth": "7", "response_text": "<think>\nseven",
        "token_ids": [4, 5], "token_texts": ["<4>", "<5>"], "logprobs_rollout": [-0.5, -0.25], "logprobs_train": [-0.5, -0.75],
        "reward": 0.5, "accuracy": 0.125, "format": 0.25, "also": {"short": 0.75}, "length_penalty": -0.0625, "kl_penalty": -0.03125,
        "advantage": 1.5, "finish_reason": "stop", "version": 6, "grade_reason": "wrong",
    }  # fmt: skip


def test_pictures_stay_within_their_limit_and_are_kept_once(tmp_path) -> None:
    pictures = [encoded((8, 8), "PNG", seed) for seed in range(4)]
    store = ImageStore(tmp_path, sum(map(len, pictures[:3])) + 1)
    names = [store.keep([picture])[0] for picture in pictures]
    assert names[3] is None
    assert store.keep([pictures[0]]) == [names[0]]
    assert sorted(file.name for file in store.folder.iterdir()) == sorted(names[:3])
    assert ImageStore(tmp_path, len(pictures[0])).keep(pictures) == names, "another process, which goes on with the run, forgot them"
    assert ImageStore(tmp_path / "none", 0).keep(pictures) == [None] * 4
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("kind", "size"), [("PNG", (1000, 400)), ("BMP", (20, 10))])
def test_a_large_picture_and_one_that_browsers_do_not_show_become_a_small_copy(tmp_path, kind, size) -> None:
    data = encoded(size, kind)
    assert (len(data) > KEPT_AS_IT_IS) == (kind == "PNG")
    store = ImageStore(tmp_path, 1 << 24)
    (name,) = store.keep([data])
    kept = (store.folder / name).read_bytes()
    assert kind_of(kept) == name.rpartition(".")[2] == "webp"
    with Image.open(BytesIO(kept)) as image:
        assert max(image.size) == min(max(size), LONGEST_SIDE)
        assert image.width / image.height == pytest.approx(size[0] / size[1], rel=0.01)


def test_a_step_does_not_wait_for_more_copies_than_its_share(tmp_path) -> None:
    store = ImageStore(tmp_path, 1 << 24)
    data = [encoded((4, 4), "BMP", seed) for seed in range(COPIES_A_STEP + 1)]
    assert [name is None for name in store.keep(data)] == [False] * COPIES_A_STEP + [True]
    rollout_rows([], lambda ids: [], store)  # the next step
    assert store.keep(data[-1:]) != [None]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_what_browsers_show_is_known_by_its_first_bytes_and_kept_as_it_is(tmp_path, kind) -> None:
    data = encoded((9, 9), kind)
    store = ImageStore(tmp_path, 1 << 20)
    (name,) = store.keep([data])
    assert (store.folder / name).read_bytes() == data


def test_a_run_records_through_its_builder_and_its_limit(tmp_path) -> None:
    from tests.run.fake_run import FakeRun

    run = FakeRun(tmp_path, [[[1.0, 0.0]]], "record.image_bytes=0")
    run.builder = SimpleNamespace(token_texts=lambda ids: ["a"] * len(ids))
    run.record(3, [sample(0, [encoded((4, 4), "PNG")])])
    (row,) = as_rows(read_table(tmp_path / "rollouts" / "step_000003.parquet"))
    assert (row["images"], row["token_texts"]) == ([None], ["a", "a"])
