"""Which models score a step's samples: what nothing reads is not computed."""

from tandem.config.checks import has_critic
from tandem.config.schema import Config


def why_old_logprobs(config: Config, step: int) -> str:
    """What needs the trainer's log-probs from before the update; empty: nothing, and the pass is left out.

    In a single on-policy update the policy that is updated is the one from before, so its own forward pass tells fidelity.
    """
    algorithm, fidelity = config.algorithm, config.fidelity
    if algorithm.old_logprobs == "trainer":
        return "algorithm.old_logprobs = trainer"
    if config.batch.num_epochs > 1 or config.batch.mini_batch_size not in (0, config.data.train_batch_size):
        return "several optimizer steps a batch, after the first of which trainer and generator can no longer be compared"
    if fidelity.max_logprob_abs_diff_max:
        return "fidelity.max_logprob_abs_diff_max looks at single tokens"
    if has_critic(config) and step <= config.critic.warmup_steps:
        return "the policy is not updated yet"
    if step == 1 and algorithm.kl.coef and fidelity.max_kl_ref_at_start:
        return "policy and reference are compared before the first update"
    return ""


def notes(config: Config) -> list[str]:
    """A line for each pass that is left out."""
    lines = [] if config.algorithm.kl.coef else ["no reference model: algorithm.kl.coef = 0"]
    if not why_old_logprobs(config, step=2):
        lines.append("no pass for old log-probs: algorithm.old_logprobs = rollout, and one optimizer step a batch tells fidelity itself")
    if has_critic(config):
        lines.append("a critic learns beside the policy: it began with the policy's weights and a value head that says 0")
    return lines
