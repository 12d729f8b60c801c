"""Settings that are legal and seldom meant: a line each, shown when a run starts and in a dry run."""

from tandem.config.schema import Config

TOKEN_CLIP = 0.05  # no sequence's mean ratio comes so far


def notes(config: Config) -> list[str]:
    model, algorithm, found = config.model, config.algorithm, []
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
