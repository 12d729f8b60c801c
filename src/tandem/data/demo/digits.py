"""Handwritten digits: the 1,797 real 8 x 8 scans that scikit-learn ships (UCI optdigits)."""

import numpy as np
from PIL import Image

from tandem.data.demo.sample import Sample, encode_png

QUESTION = "Which digit is shown?"
SIDE = 32


def digit_samples() -> list[Sample]:
    """Every scan, dark on white, enlarged to 32 x 32."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    samples = []
    for scan, target in zip(digits.images, digits.target):
        grey = np.rint(255 - scan * (255 / 16)).astype(np.uint8)  # a scan's values are 0 to 16, ink high
        image = Image.fromarray(grey).resize((SIDE, SIDE), Image.Resampling.NEAREST).convert("RGB")
        samples.append(Sample("demo/digits", encode_png(image), QUESTION, str(target), str(target)))
    return samples
