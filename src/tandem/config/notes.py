"""Settings that are legal and seldom meant: a line each, shown when a run starts and in a dry run."""

from tandem.config.schema import Config


def notes(config: Config) -> list[str]:
    model, found = config.model, []
    for key, coef in {"router_aux_loss_coef": model.router_aux_loss_coef, "router_z_loss_coef": model.router_z_loss_coef}.items():
        if coef:
            found.append(
                f"model.{key} = {coef:g}: a router loss pulls against the policy loss and lowers accuracy in reinforcement learning; "
                "it counts prompt tokens and padding too. 0 is the default"
            )
    return found
