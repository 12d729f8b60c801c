"""After a publication each generator decodes a few tokens and the trainer scores them: its weights, states and caches are seen to be the
trainer's before it samples anything to learn from."""

import numpy as np

from tandem.config.schema import FidelityConfig
from tandem.data.prompt_set import PromptSet
from tandem.data.types import Prompt, Sequence
from tandem.errors import RunError
from tandem.rollout.types import Completion


def canary_prompts(prompts: PromptSet) -> list[Prompt]:
    """The shortest prompt with an image and the shortest without, as far as there are such."""
    by_kind = ([i for i, row in enumerate(prompts.rows) if row.images], [i for i, row in enumerate(prompts.rows) if not row.images])
    return [prompts[min(kind, key=lambda index: prompts.lengths[index])] for kind in by_kind if kind]


def canary_sequences(prompts: list[Prompt], sung: list[list[Completion]], multiple: int) -> list[Sequence]:
    """What the engines [engine][prompt] decoded, the first of them repeated until their number is a multiple of `multiple`."""
    sequences = [Sequence(prompt, completion.token_ids) for completions in sung for prompt, completion in zip(prompts, completions)]
    return sequences + sequences[:1] * (-len(sequences) % multiple)


def check_canary(sung: list[list[Completion]], scored: list[np.ndarray], engines: list[str], limits: FidelityConfig) -> list[float]:
    """Each engine's mean |Δ log-prob|.

    Args:
        scored: the trainer's log-probs of `canary_sequences`.
        engines: their names, for the message.

    Raises:
        RunError: an engine's mean passes `fidelity.max_logprob_abs_diff_mean` (0: no limit) or is not a number.
    """
    limit, means, at = limits.max_logprob_abs_diff_mean, [], 0
    for engine, completions in zip(engines, sung):
        ours = np.concatenate(scored[at : at + len(completions)])
        theirs = np.concatenate([completion.logprobs for completion in completions])
        at += len(completions)
        means.append(float(np.abs(ours - theirs).mean()))
        if limit and not means[-1] <= limit:
            raise RunError(
                f"{engine} does not generate with the weights that were published: mean |Δ log-prob| {means[-1]:.3e}, limit {limit:.1e}",
                f"after the publication of version {completions[0].version} it decoded {len(ours)} tokens whose log-probs are not the "
                "trainer's: stale caches or states, a tensor that was not loaded, or another arithmetic",
                "look at its log; with bfloat16 a higher fidelity.max_logprob_abs_diff_mean may be right",
            )
    return means
