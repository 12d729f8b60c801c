"""Supervised steps on the rows' reference responses, by the same training engine: the warm start of a model that earns no reward yet."""

import numpy as np

from tandem.algorithms.aggregation import token_weights
from tandem.data.loader import Loader
from tandem.data.rows import reference_response
from tandem.data.types import Prompt, Sequence
from tandem.run.run import Run


def warm_start(run: Run) -> None:
    """Up to `warm_start.max_steps` steps; stops early once the held-out reference responses are probable enough.

    Raises:
        UserError: a row has no reference response.
    """
    config, settings = run.config, run.config.warm_start
    train, held_out = reference_sequences(run, run.train_prompts), reference_sequences(run, run.warm_start_prompts)
    loader = Loader(len(train), settings.batch_size, config.trainer.seed, shuffle=True)
    run.trainers.start_optimizer(settings.lr, settings.weight_decay)
    probability = float("nan")
    with run.track.phase("warm start", settings.max_steps) as progress:
        for step in range(1, settings.max_steps + 1):
            _, indices = loader.next()
            batch = with_weights([train[index] for index in indices])
            run.trainers.update(batch, lr=settings.lr * min(1.0, step / max(1, settings.warmup_steps)), supervised=True)
            progress(step, settings.max_steps)
            if held_out and step % settings.test_freq == 0:
                probability = response_probability(run, held_out)
                run.track.note(f"warm start: step {step}, held-out reference answers have probability {probability:.3f}")
                if settings.stop_probability and probability >= settings.stop_probability:
                    break
            if run.stop_requested:
                break
    run.track.note(f"warm start: {step} steps")


def reference_sequences(run: Run, prompts: list[Prompt]) -> list[Sequence]:
    """Prompt and reference response (`extra_info.response`) of each row."""
    return [Sequence(prompt, run.builder.encode_response(reference_response(prompt.row))) for prompt in prompts]


def with_weights(sequences: list[Sequence]) -> list[Sequence]:
    """Each response token weighs the same."""
    lengths = np.array([len(s.response_ids) for s in sequences])
    weights = token_weights(lengths, "token_mean", int(lengths.max()))
    return [Sequence(s.prompt, s.response_ids, {"weights": np.full(n, w, np.float32)}) for s, n, w in zip(sequences, lengths, weights)]


def response_probability(run: Run, sequences: list[Sequence]) -> float:
    """Mean probability that sampling would give exactly the reference response: a lower bound of sampled accuracy."""
    scores = run.trainers.scores(sequences, temperature=1.0)
    return float(np.mean([np.exp(logprobs.sum()) for logprobs, _ in scores]))
