"""An environment that answers every turn, the first time with an image."""

from PIL import Image

from tandem.data.demo.sample import encode_png
from tandem.rollout.environment import Message, Step


class Echo:
    def reset(self, row):
        self.num_steps = 0
        return row

    async def step(self, text):
        self.num_steps += 1
        if self.num_steps == 1:
            return Step([Message("12 + <image> =", [encode_png(Image.new("RGB", (64, 48), (200, 30, 90)))])], score=0.5)
        return Step([Message("and 3?")])
