"""Rules between the settings of `algorithm`, `critic` and `optimizer`; `checks.py` has the others and runs them all."""

from tandem.config.schema import Config
from tandem.errors import UserError

GROUP_ADVANTAGES = ("grpo", "dr_grpo", "rloo", "opo", "grpo_passk", "reinforce_plus_plus_baseline")  # they compare samples of one prompt
CRITIC_ADVANTAGES = ("gae", "ppo")  # they need a critic's values


def has_critic(config: Config) -> bool:
    """Whether a value model is trained beside the policy."""
    return config.algorithm.advantage in CRITIC_ADVANTAGES


def group_baselines_need_a_group(config: Config) -> None:
    algorithm = config.algorithm
    if algorithm.advantage in GROUP_ADVANTAGES and config.rollout.n < 2:
        raise UserError(
            f"rollout.n = {config.rollout.n} with algorithm.advantage = {algorithm.advantage}",
            "the advantage compares the samples of one prompt: alone, a sample's is always 0 and nothing is learned",
            "set rollout.n=2 or more (8 is usual)",
        )


def tokens_of_a_sequence_may_differ(config: Config) -> None:
    """GSPO's and GMPO's clips look at the advantage of a sequence as one."""
    if has_critic(config) and config.algorithm.loss in ("gspo", "gmpo"):
        raise UserError(
            f"algorithm.loss = {config.algorithm.loss} with algorithm.advantage = {config.algorithm.advantage}",
            "a critic gives each token an advantage of its own, and this loss has one ratio for a whole sequence",
            "set algorithm.loss=ppo_clip, or gspo_token",
        )


def the_critic_leaves_steps_for_the_policy(config: Config) -> None:
    total, warmup = config.trainer.total_steps, config.critic.warmup_steps
    if has_critic(config) and total and warmup >= total:
        raise UserError(
            f"critic.warmup_steps = {warmup} of trainer.total_steps = {total}",
            "the policy would never be updated",
            f"set critic.warmup_steps={total // 10}",
        )


def clips_are_in_order(config: Config) -> None:
    dual = config.algorithm.clip_dual
    if 0 < dual <= 1:
        raise UserError(f"algorithm.clip_dual = {dual}", "the bound on -ratio * advantage must lie above 1", "set 3 (usual) or 0 (off)")


def kl_in_the_reward_needs_a_weight(config: Config) -> None:
    kl = config.algorithm.kl
    if kl.where == "reward" and kl.coef == 0:
        raise UserError(
            "algorithm.kl.where = reward with algorithm.kl.coef = 0",
            "a weight of 0 means no reference model, so nothing would be taken from the reward",
            "set algorithm.kl.coef=0.001 (usual), or algorithm.kl.where=loss",
        )


def a_target_needs_a_kl_term(config: Config) -> None:
    kl = config.algorithm.kl
    if kl.target and kl.coef == 0:
        raise UserError(
            f"algorithm.kl.target = {kl.target:g} with algorithm.kl.coef = 0",
            "the coefficient is adapted by factors, and 0 stays 0",
            "set algorithm.kl.coef=0.001 to start from, or algorithm.kl.target=0",
        )


def an_adaptive_kl_stays_positive(config: Config) -> None:
    """A step changes it by a fifth of samples / horizon at most: from five on it could turn around, and pay for drifting."""
    kl, num_samples = config.algorithm.kl, config.data.train_batch_size * config.rollout.n
    if kl.target and kl.horizon < num_samples:
        raise UserError(
            f"algorithm.kl.horizon = {kl.horizon} is shorter than the {num_samples} samples of a step",
            "the coefficient would jump, and could become negative",
            f"set algorithm.kl.horizon={10 * num_samples}",
        )


def dynamic_sampling_can_end(config: Config) -> None:
    if not config.algorithm.dynamic_sampling:
        return
    if config.rollout.n < 2:
        raise UserError(
            f"algorithm.dynamic_sampling with rollout.n = {config.rollout.n}",
            "it replaces prompts whose samples all earn the same, as a single one always does",
            "set rollout.n=2 or more (16 is usual), or algorithm.dynamic_sampling=0",
        )
    if config.algorithm.advantage not in GROUP_ADVANTAGES:
        raise UserError(
            f"algorithm.dynamic_sampling with algorithm.advantage = {config.algorithm.advantage}",
            "it leaves out groups that all earn the same, which teach nothing only where samples are compared within their group",
            f"set algorithm.advantage to one of {', '.join(GROUP_ADVANTAGES)}, or algorithm.dynamic_sampling=0",
        )
    if not config.trainer.total_steps:
        raise UserError(
            "algorithm.dynamic_sampling without trainer.total_steps",
            "a step draws as many prompts as it needs, so nobody knows how many steps an epoch has, nor what the learning rate ends at",
            "set trainer.total_steps",
        )


def a_correction_has_something_to_correct(config: Config) -> None:
    algorithm = config.algorithm
    correction = algorithm.correction
    if correction.kind == "none":
        return
    if algorithm.old_logprobs == "rollout":
        raise UserError(
            f"algorithm.correction.kind = {correction.kind} with algorithm.old_logprobs = rollout",
            "the loss's own ratio is then taken against the generator already, and would be corrected twice",
            "set algorithm.old_logprobs=trainer, or algorithm.correction.kind=none",
        )
    if correction.kind == "icepop" and correction.min >= correction.max:
        raise UserError(
            f"algorithm.correction.min = {correction.min:g} is not below algorithm.correction.max = {correction.max:g}",
            "every token would be masked, and nothing learned",
            "set algorithm.correction.min=0.5 algorithm.correction.max=2",
        )


def betas_are_decay_rates(config: Config) -> None:
    for key, betas in (("optimizer", config.optimizer.betas), ("critic.optimizer", config.critic.optimizer.betas)):
        if all(0 <= beta < 1 for beta in betas):
            continue
        raise UserError(
            f"{key}.betas = {list(betas)}", "each is the share of a moving average that is kept: 0 or more, below 1", "set [0.9, 0.999]"
        )


ALGORITHM_RULES = (
    group_baselines_need_a_group,
    tokens_of_a_sequence_may_differ,
    the_critic_leaves_steps_for_the_policy,
    clips_are_in_order,
    kl_in_the_reward_needs_a_weight,
    a_target_needs_a_kl_term,
    an_adaptive_kl_stays_positive,
    dynamic_sampling_can_end,
    a_correction_has_something_to_correct,
    betas_are_decay_rates,
)
