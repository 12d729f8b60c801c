"""How a file's columns say prompt, answer and images: layouts that are known by their columns, and a user's own names.

Every record becomes one of the processed kind: data_source, prompt, images, reward_model, extra_info.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tandem.config.schema import DataConfig
from tandem.rewards.extract import last_box

Record = dict[str, Any]
IMAGE_MARK = "<image>"
# what the field's processing script writes behind a published problem
INSTRUCTION = (
    "You FIRST think about the reasoning process as an internal monologue and then provide the final answer. "
    r"The reasoning process MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in \boxed{}."
)


@dataclass(frozen=True)
class Layout:
    """`needed` columns make a file of this layout; `read` are those that are looked at."""

    name: str
    needed: tuple[str, ...]
    read: tuple[str, ...]
    convert: Callable[[Record], Record]


def layout_of(columns: Collection[str], data: DataConfig) -> Layout:
    """The layout of a file with these columns; the processed one, whose lack is told in detail, when it is none of the others."""
    if data.columns.prompt:
        return _mapped(data)
    for layout in (GEOMETRY3K, MATH_ANSWERS, MATH_SOLUTIONS, GSM8K):
        if "prompt" not in columns and {*layout.needed} <= {*columns}:
            return layout
    return PROCESSED


def _problem(source: str, problem: Any, answer: Any, images: Any = None, **extra: Any) -> Record:
    return {
        "data_source": source,
        "prompt": None if problem is None else [{"role": "user", "content": f"{problem} {INSTRUCTION}"}],
        "images": images,
        "reward_model": {"ground_truth": answer},
        "extra_info": {"question": problem, "answer": answer, **extra},
    }


def _gsm8k(record: Record) -> Record:
    """The answer stands behind the solution's last `####`."""
    solution = record["answer"]
    answer = solution.rpartition("####")[2].strip() if isinstance(solution, str) and "####" in solution else None
    return _problem("openai/gsm8k", record["question"], answer, solution=solution)


def _math_solution(record: Record) -> Record:
    """The answer is the last box of the solution."""
    solution = record["solution"]
    extra = {name: record.get(name) for name in ("level", "type")}
    return _problem("math", record["problem"], last_box(solution or ""), solution=solution, **extra)


PROCESSED = Layout(
    "processed", ("data_source", "prompt", "reward_model"), ("data_source", "prompt", "images", "reward_model", "extra_info"), lambda r: r
)
GEOMETRY3K = Layout(
    "Geometry3K",
    ("problem", "answer", "images"),
    ("problem", "answer", "images"),
    lambda r: _problem("hiyouga/geometry3k", r["problem"], r["answer"], r.get("images")),
)
MATH_ANSWERS = Layout("MATH", ("problem", "answer"), ("problem", "answer"), lambda r: _problem("math", r["problem"], r["answer"]))
MATH_SOLUTIONS = Layout("MATH", ("problem", "solution"), ("problem", "solution", "level", "type"), _math_solution)
GSM8K = Layout("GSM8K", ("question", "answer"), ("question", "answer"), _gsm8k)


def _mapped(data: DataConfig) -> Layout:
    """The columns that `data.columns` names."""
    names = data.columns

    def convert(record: Record) -> Record:
        prompt: Any
        prompt, images = record.get(names.prompt), record.get(names.images) if names.images else None
        images = [images] if isinstance(images, dict | str) else images  # one image alone
        if isinstance(prompt, str):
            marks = "" if IMAGE_MARK in prompt else IMAGE_MARK * len(images or [])
            prompt = [{"role": "user", "content": f"{marks}{prompt}"}]
        last = prompt[-1] if isinstance(prompt, list) and prompt else None
        if data.instruction and isinstance(last, dict) and last.get("content"):
            prompt = [*prompt[:-1], {**last, "content": f"{last['content']} {data.instruction}"}]
        response = {"response": record.get(names.response)} if names.response else {}
        return {
            "data_source": record.get(names.source) if names.source else None,
            "prompt": prompt,
            "images": images,
            "reward_model": {"ground_truth": record.get(names.answer)},
            "extra_info": {"answer": record.get(names.answer)} | response,
        }

    named = (names.prompt, names.answer, names.images, names.source, names.response)
    return Layout("data.columns", (names.prompt, names.answer), tuple(dict.fromkeys(name for name in named if name)), convert)
