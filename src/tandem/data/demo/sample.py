"""One question of the demo, before it becomes a row."""

from dataclasses import dataclass
from io import BytesIO

from PIL import Image

INSTRUCTION = r"Think, then answer in \boxed{}."


@dataclass(frozen=True)
class Sample:
    data_source: str
    image: bytes  # PNG
    question: str
    answer: str
    thought: str  # what the reference response thinks before it answers

    @property
    def response(self) -> str:
        """The reference response; it follows a prompt that ends in an opened thought."""
        return f"{self.thought}\n</think>\n\n\\boxed{{{self.answer}}}"


def encode_png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
