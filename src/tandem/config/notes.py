"""Settings that are legal and seldom meant: a line each, shown when a run starts and in a dry run."""

from tandem.config.algorithm_checks import has_critic
from tandem.config.schema import Config

TOKEN_CLIP = 0.05  # no sequence's mean ratio comes so far


# Settings of `algorithm` that not every loss or advantage reads, and those that do.
OF_LOSSES = {
    "clip_low": ("ppo_clip", "gspo", "gspo_token", "cispo", "gmpo"),
    "clip_high": ("ppo_clip", "gspo", "gspo_token", "cispo", "gmpo"),
    "clip_dual": ("ppo_clip", "gspo", "gspo_token"),
    "tau_positive": ("sapo",),
    "tau_negative": ("sapo",),
}
OF_ADVANTAGES = {"norm_by_std": ("grpo", "grpo_passk"), "gamma": ("gae", "ppo"), "lam": ("gae", "ppo"), "whiten": ("gae", "ppo")}


def ignored(config: Config) -> list[str]:
    """A line for each setting that was changed from its default and that the chosen loss, or advantage, does not read."""
    algorithm, default, found = config.algorithm, type(config.algorithm)(), []
    for kind, chosen, table in (("loss", algorithm.loss, OF_LOSSES), ("advantage", algorithm.advantage, OF_ADVANTAGES)):
        for key, readers in table.items():
            value = getattr(algorithm, key)
            if value != getattr(default, key) and chosen not in readers:
                found.append(
                    f"algorithm.{key} = {value} is not used: algorithm.{kind} = {chosen} does not read it; {', '.join(readers)} would"
                )
    if not has_critic(config) and config.critic != type(config.critic)():
        found.append(f"critic.* is not used: algorithm.advantage = {algorithm.advantage} needs no critic")
    if algorithm.mask_overlong and config.reward.overlong_buffer:
        found.append("reward.overlong_buffer with algorithm.mask_overlong: responses of full length are masked, so only shorter ones pay")
    return found


def notes(config: Config) -> list[str]:
    model, algorithm, found = config.model, config.algorithm, ignored(config)
    if algorithm.loss in ("gspo", "gspo_token") and min(algorithm.clip_low, algorithm.clip_high) >= TOKEN_CLIP:
        found.append(
            f"algorithm.clip_low = {algorithm.clip_low:g} with algorithm.loss = {algorithm.loss}: its ratio is the mean of a sequence and "
            "never comes so far, so nothing is clipped; the paper has clip_low=3e-4 clip_high=4e-4"
        )
    for key, coef in {"router_aux_loss_coef": model.router_aux_loss_coef, "router_z_loss_coef": model.router_z_loss_coef}.items():
        if coef:
            found.append(
                f"model.{key} = {coef:g}: a router loss pulls against the policy loss and lowers accuracy in reinforcement learning; "
                "it counts prompt tokens and padding too. 0 is the default"
            )
    return found
