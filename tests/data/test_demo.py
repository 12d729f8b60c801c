"""The demo's data: fixed by its seed, splits that share no image, and answers that a look at the pixels gives again."""

import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tandem.data.demo import write
from tandem.data.demo.digits import digit_samples
from tandem.data.demo.geometry import geometry_samples
from tandem.data.demo.write import SIZES, write_demo_data
from tandem.data.rows import read_rows
from tandem.rewards.geo3k import grade


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_demo_data(tmp_path_factory.mktemp("demo"), seed=0)


@pytest.fixture(scope="module")
def splits(files):
    return {split: read_rows([str(path)]) for split, path in files.items()}


@pytest.fixture(scope="module")
def diagrams():
    return geometry_samples(300, np.random.default_rng(11))


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(data)).convert("RGB")).astype(int)


def ink(data: bytes) -> np.ndarray:
    """[H, W] bool: black."""
    return (pixels(data) == 0).all(axis=2)


def extent(mask: np.ndarray) -> tuple[int, int]:
    """Width and height of what is true."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[-1] - columns[0] + 1), int(rows[-1] - rows[0] + 1)


def asked(diagrams, question: str) -> list:
    chosen = [sample for sample in diagrams if sample.question == question]
    assert len(chosen) == 60  # the five kinds in turn
    return chosen


def test_the_files_have_the_sizes_they_say_and_pass_the_check_of_rows(splits):
    assert {split: len(rows) for split, rows in splits.items()} == {split: sum(sizes) for split, sizes in SIZES.items()}
    for split, rows in splits.items():
        sources = [row.data_source for row in rows]
        assert (sources.count("demo/digits"), sources.count("demo/geometry")) == SIZES[split]
        assert len(set(sources[:20])) == 2  # mixed


def test_no_image_is_in_two_splits(splits):
    images = {split: {row.images[0] for row in rows} for split, rows in splits.items()}
    assert not images["train"] & images["val"]
    assert not (images["train"] | images["val"]) & images["test"]


def test_a_seed_gives_the_same_bytes_in_another_process_and_another_seed_others(tmp_path, monkeypatch):
    few = {"train": (20, 20), "val": (5, 5), "test": (5, 5)}
    monkeypatch.setattr(write, "SIZES", few)
    script = f"import sys; from tandem.data.demo import write; write.SIZES = {few}; write.write_demo_data(sys.argv[1], 3)"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=100, env={"PYTHONHASHSEED": "5"})
    for seed in (3, 4):
        for name, path in write.write_demo_data(tmp_path / f"{seed}", seed).items():
            assert (path.read_bytes() == (tmp_path / f"{name}.parquet").read_bytes()) == (seed == 3)


def test_reference_responses_are_graded_right_behind_an_opened_thought(splits):
    for row in splits["val"]:
        result = grade("<think>\n" + row.extra_info["response"], row.ground_truth)
        assert (result.accuracy, result.format) == (1.0, 1.0), row.id
        assert grade("<think>\n\n</think>\n\n\\boxed{-1}", row.ground_truth).accuracy == 0


def test_every_prompt_shows_its_one_image_and_asks_for_a_box(splits):
    for row in splits["test"]:
        [message] = row.messages
        assert message["content"].startswith(f"<image>{row.extra_info['question']} ") and "\\boxed{}" in message["content"]
        assert len(row.images) == 1 and row.extra_info["answer"] == row.ground_truth


def test_digits_are_the_scans_of_scikit_learn_with_their_labels():
    from sklearn.datasets import load_digits

    scans = load_digits()
    samples = digit_samples()
    assert len(samples) == len(scans.images) == 1797
    for sample, scan, label in zip(samples, scans.images, scans.target):
        enlarged = pixels(sample.image)
        assert enlarged.shape == (32, 32, 3)
        assert (enlarged == enlarged[::4, ::4].repeat(4, axis=0).repeat(4, axis=1)).all()  # 4 x 4 pixels for one of the scan
        assert np.abs((255 - enlarged[::4, ::4, 0]) * 16 / 255 - scan).max() < 0.05  # ink is dark
        assert sample.answer == str(label)


def test_points_counted_in_the_picture(diagrams):
    from scipy.ndimage import label

    for sample in asked(diagrams, "How many points are there?"):
        _, found = label(ink(sample.image), structure=np.ones((3, 3)))
        assert sample.answer == str(found)


def test_area_and_perimeter_measured_in_the_picture(diagrams):
    for question, formula in [("What is the area?", lambda w, h: w * h), ("What is the perimeter?", lambda w, h: 2 * w + 2 * h)]:
        for sample in asked(diagrams, question):
            width, height = (-(-side // 8) for side in extent(ink(sample.image)))  # cells of 8 pixels
            assert sample.answer == str(formula(width, height))
            assert 1 <= width <= 4 and 1 <= height <= 4


def test_hypotenuse_measured_in_the_picture(diagrams):
    for sample in asked(diagrams, "How long is the hypotenuse?"):
        legs = [round(side / 4) for side in extent(ink(sample.image))]  # cells of 4 pixels
        assert float(sample.answer) == np.hypot(*legs)


def test_sides_counted_in_the_picture(diagrams):
    """The distance from the middle to the edge rises and falls once a side."""
    counts = []
    for sample in asked(diagrams, "How many sides are there?"):
        inside = (pixels(sample.image) != 255).any(axis=2)
        y, x = (axis.mean() for axis in np.nonzero(inside))
        angles = np.arange(360) * np.pi / 180
        radii = np.arange(0, 16, 0.1)
        at_y = np.clip(np.rint(y + np.outer(np.sin(angles), radii)), 0, 31).astype(int)
        at_x = np.clip(np.rint(x + np.outer(np.cos(angles), radii)), 0, 31).astype(int)
        spectrum = np.abs(np.fft.rfft(inside[at_y, at_x].sum(axis=1)))
        counts.append(3 + int(spectrum[3:7].argmax()))
        assert sample.answer == str(counts[-1])
    assert set(counts) == {3, 4, 5, 6}


def test_thoughts_lead_to_their_answers(diagrams):
    for sample in diagrams:
        if "," in sample.thought:
            assert np.hypot(*map(int, sample.thought.split(","))) == float(sample.answer)
        else:
            assert eval(sample.thought, {"__builtins__": {}}) == int(sample.answer)
