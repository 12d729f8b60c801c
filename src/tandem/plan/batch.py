"""A micro-batch as the plan sees it: lengths only."""

from dataclasses import dataclass
from functools import cached_property

from tandem.config.schema import Config


@dataclass(frozen=True)
class MicroBatch:
    lengths: tuple[int, ...]  # tokens of each sequence, padding included, over all context-parallel ranks
    num_image_tokens: int = 0
    num_images: int = 0

    @cached_property
    def num_tokens(self) -> int:
        return sum(self.lengths)


def longest_sequence(config: Config) -> int:
    return config.data.max_prompt_length + config.data.max_response_length


def fullest_micro_batch(config: Config) -> MicroBatch:
    """The most that `batch` lets through: as many of the longest sequences as fit, and every prompt all image."""
    longest, cp = longest_sequence(config), config.parallel.cp
    align = (2 * cp if cp > 1 else 1) * config.parallel.tp
    if num := config.batch.micro_batch_size:
        lengths = (-(-longest // align) * align,) * num
        return MicroBatch(lengths, num * config.data.max_prompt_length, num)
    room = max(config.batch.max_tokens_per_device * cp, longest)
    whole, rest = divmod(room, longest)
    last = rest // align * align
    lengths = (longest,) * whole + ((last,) if last else ())
    # the room could also be all prompts with short responses: each sequence has one response token at least
    num_prompts = room // (config.data.max_prompt_length + 1) or 1
    return MicroBatch(lengths, num_prompts * config.data.max_prompt_length, num_prompts)


def num_micro_batches(config: Config, dp: int) -> int:
    """Of one optimizer step on a data-parallel rank, when all sequences are as long as allowed."""
    prompts = config.batch.mini_batch_size or config.data.train_batch_size
    sequences = -(-prompts * config.rollout.n // dp)
    per_batch = config.batch.micro_batch_size or max(1, config.batch.max_tokens_per_device * config.parallel.cp // longest_sequence(config))
    count = -(-sequences // per_batch)
    multiple = config.parallel.pp if config.parallel.vpp else 1
    return -(-count // multiple) * multiple
