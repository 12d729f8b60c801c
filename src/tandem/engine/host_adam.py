"""AdamW in host memory: fp32 weights and moments lie there and a step is computed there. Gradients leave the device, weights come back.

Megatron's distributed optimizer has a path for such a class, `HybridDeviceOptimizer`, but that one wants CUDA tensors and streams, and
keeps copies of gradients and weights too. `HostAdamW` takes its place on every device, with what the distributed optimizer asks of it
(0.16.1).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class HostAdamW(torch.optim.AdamW):
    """Parameters are shards of weights on the device, their gradients `decoupled_grad` in fp32 beside them.

    Args:
        hybrid: what else Megatron passes to its own class; nothing of it matters here.
    """

    def __init__(self, params, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, **hybrid: Any):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    @property
    def sub_optimizers(self) -> "list[HostAdamW]":
        """Where Megatron looks for step counts."""
        return [self]

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def start(self) -> None:
        """Copy the weights to the host, moments of zero beside them. Megatron makes this object twice: the first one never starts."""
        for parameter in self._parameters():
            master = parameter.detach().to("cpu", torch.float32, copy=True)
            moments = {name: torch.zeros_like(master) for name in ("exp_avg", "exp_avg_sq")}
            self.state[parameter] = {"step": torch.tensor(0.0), "master_param": master} | moments

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """One parameter after the other, so that the host holds one gradient at a time."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if getattr(parameter, "decoupled_grad", None) is None:
                    continue
                state = self.state[parameter]
                adamw(
                    [state["master_param"]],
                    [parameter.decoupled_grad.to("cpu", torch.float32)],
                    [state["exp_avg"]],
                    [state["exp_avg_sq"]],
                    [],
                    [state["step"]],
                    fused=True,  # one pass over memory instead of ten
                    amsgrad=False,
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    lr=group["lr"],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    maximize=False,
                )
                parameter.copy_(state["master_param"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """In place. torch's own would bring the state to the parameters' device and dtype."""
        for group, loaded in zip(self.param_groups, state_dict["param_groups"]):
            group.update({name: value for name, value in loaded.items() if name != "params"})
        for index, parameter in enumerate(self._parameters()):
            self.write(parameter, state_dict["state"][index])

    def write(self, parameter: Tensor, tensors: dict[str, Tensor]) -> None:
        """Copy `tensors` into the state of a parameter."""
        for name, tensor in tensors.items():
            if name == "step":  # Megatron gives all parameters the same tensor
                self.state[parameter][name] = tensor.detach().clone()
            else:
                self.state[parameter][name].copy_(tensor)

    def update_fp32_param_by_new_param(self) -> None:
        """The weights on the device have been set: they are the ones to train now."""
        for parameter in self._parameters():
            self.state[parameter]["master_param"].copy_(parameter)

    def _sync_hdo_state_to_sub_optimizers(self) -> None:
        """Megatron calls it after loading; there is nothing to pass on."""


def replace_hybrid_optimizer() -> None:
    """Have Megatron make `HostAdamW` where it would make its own class."""
    import megatron.core.optimizer
    import megatron.core.optimizer.distrib_optimizer
    from megatron.core.optimizer import optimizer_config
    from megatron.core.utils import get_te_version

    for module in (megatron.core.optimizer, megatron.core.optimizer.distrib_optimizer):
        module.HybridDeviceOptimizer = HostAdamW
    if get_te_version() is None:  # its settings compare this version with a number, and fail
        optimizer_config.is_te_min_version = lambda *_, **__: False
