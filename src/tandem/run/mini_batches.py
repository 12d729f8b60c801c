"""The mini-batches of a step's updates, each token with its weight in its mini-batch's loss."""

from collections.abc import Iterator

import numpy as np

from tandem.algorithms import aggregation
from tandem.config.schema import Config
from tandem.run.samples import Sample


def mini_batches(samples: list[Sample], config: Config) -> Iterator[list[Sample]]:
    """`batch.mini_batch_size` prompts with all of their samples at a time, `batch.num_epochs` times over."""
    size = mini_batch_size(config)
    for _ in range(config.batch.num_epochs):
        for start in range(0, len(samples), size):
            batch = samples[start : start + size]
            add_weights(batch, config)
            yield batch


def mini_batch_size(config: Config) -> int:
    """Samples."""
    return (config.batch.mini_batch_size or config.data.train_batch_size) * config.rollout.n


def num_mini_batches(samples: list[Sample], config: Config) -> int:
    return config.batch.num_epochs * -(-len(samples) // mini_batch_size(config))


def add_weights(batch: list[Sample], config: Config) -> None:
    """Each token's weight in the mini-batch's loss; 0, as if it were not there, in a response that is masked for being cut off."""
    algorithm = config.algorithm
    kept = [s for s in batch if not (algorithm.mask_overlong and s.completion.finish_reason == "length")]
    lengths = np.array([s.num_own for s in kept])
    weights = aggregation.token_weights(lengths, algorithm.aggregation, config.data.max_response_length) if kept else []
    by_sample = {id(sample): weight for sample, weight in zip(kept, weights)}
    for sample in batch:
        sample.fields["weights"] = np.full(sample.num_own, by_sample.get(id(sample), 0.0), np.float32)
