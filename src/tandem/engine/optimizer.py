"""Megatron's distributed optimizer on our settings."""

import math
from contextlib import nullcontext

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

from tandem.config.schema import OptimizerConfig
from tandem.engine.host_adam import HostAdamW, replace_hybrid_optimizer


def wrap(config: TransformerConfig, chunks: list[torch.nn.Module]) -> list[DistributedDataParallel]:
    """Model chunks whose gradients are reduced over the data-parallel ranks, in fp32, summed (the loss is normalised globally)."""
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True, overlap_grad_reduce=False)
    return [DistributedDataParallel(config, ddp, chunk, disable_bucketing=index > 0) for index, chunk in enumerate(chunks)]


def build(config: OptimizerConfig, chunks: list[DistributedDataParallel], dtype: torch.dtype, *, lr: float, weight_decay: float):
    """AdamW, its state sharded over the data-parallel ranks, on the device or with `on_cpu` in host memory. Vectors (norms, biases, A_log,
    dt_bias) do not decay."""
    if config.on_cpu:
        replace_hybrid_optimizer()
    settings = MegatronOptimizerConfig(
        optimizer="adam",
        lr=lr,
        weight_decay=weight_decay,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_eps=config.eps,
        clip_grad=config.clip_grad,
        use_distributed_optimizer=True,
        optimizer_cpu_offload=config.on_cpu,
        use_precision_aware_optimizer=config.on_cpu,  # Megatron's name for: the fp32 weights are the inner optimizer's
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
    )
    with torch.no_grad() if config.on_cpu else nullcontext():  # views of fp32 parameters are leaves then, as torch's optimizers want them
        optimizer = get_megatron_optimizer(settings, chunks)
    for group in optimizer.param_groups:  # Megatron leaves its marks to be read by a scheduler of its own, which we do not have
        group["weight_decay"] = weight_decay * group["wd_mult"]
    _correct_order(optimizer)
    _fill_state(optimizer)
    return optimizer


def _correct_order(optimizer) -> None:
    """Say where each parameter stands in the inner optimizer: fp32 ones of a group come first (0.16.1 counts them in their own order).

    Without this a checkpoint of bf16 training with some parameters in fp32 would hold the state of one parameter as that of another.
    """
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if part.optimizer is None:  # this rank has none of these parameters
            continue
        for group, (fp32, bf16) in enumerate(zip(part.model_fp32_groups, part.model_float16_groups)):
            part.model_param_group_index_map.update({parameter: (group, order) for order, parameter in enumerate([*fp32, *bf16])})


def _fill_state(optimizer) -> None:
    """Make torch's AdamW savable and loadable at any step; the fused optimizers of TE and MindSpeed are.

    Megatron reads its moments and step counts before the first step, which makes them, and its loading of resharded state expects a
    value for the step count of each parameter, which it has already set for all (0.16.1).
    """
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = part.optimizer
        if isinstance(inner, HostAdamW):
            inner.start()
            part._set_main_param_and_optimizer_states = _into_host_memory(part)
            continue
        part._set_main_param_and_optimizer_states = _leaving_the_rest(part)
        if not isinstance(inner, torch.optim.AdamW):
            continue
        for parameter in (p for group in inner.param_groups for p in group["params"]):
            zeros = {name: torch.zeros_like(parameter.data) for name in ("exp_avg", "exp_avg_sq")}
            inner.state[parameter] = {"step": torch.tensor(0.0)} | zeros


def _leaving_the_rest(part):
    """What is not among the tensors that were loaded stays: the step count, and a master weight that is the parameter itself."""
    write = part._set_main_param_and_optimizer_states

    def write_what_is_there(model_param, tensors: dict[str, torch.Tensor]) -> None:
        group, order = part.model_param_group_index_map[model_param]
        main_param = part.optimizer.param_groups[group]["params"][order]
        step = part.optimizer.state[main_param].get("step")
        write(model_param, {"param": main_param} | ({} if step is None else {"step": step}) | tensors)

    return write_what_is_there


def _into_host_memory(part):
    """Megatron would keep the slices of loaded tensors, and with them the tensors, instead of their values. A master weight that was not
    saved is the parameter, which has been loaded."""

    def write(model_param, tensors: dict[str, torch.Tensor]) -> None:
        group, order = part.model_param_group_index_map[model_param]
        renamed = {"master_param" if name == "param" else name: tensor for name, tensor in tensors.items()}
        parameter = part.optimizer.param_groups[group]["params"][order]
        part.optimizer.write(parameter, {"master_param": parameter} | renamed)

    return write


def own_step_counts(optimizer) -> None:
    """Give each parameter a step count of its own. Megatron loads one tensor for all of a group, and torch's AdamW adds 1 to it in place
    for every parameter: after a step it would be the number of parameters, and Adam's bias correction gone (0.16.1)."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        for state in part.optimizer.state.values() if part.optimizer else ():
            if torch.is_tensor(state.get("step")):
                state["step"] = state["step"].clone()


def set_lr(optimizer, lr: float) -> None:
    """For every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def step(optimizer, device: str) -> tuple[bool, float]:
    """One step, and the gradient norm before clipping. A norm that is not finite on some rank leaves weights and state on all as they are.

    Returns:
        Whether the step was taken, and the norm: NaN when it was not.
    """
    optimizer.prepare_grads()
    finite = torch.tensor(float(math.isfinite(optimizer.get_grad_norm())), device=device)
    torch.distributed.all_reduce(finite, op=torch.distributed.ReduceOp.MIN)
    if not finite:
        return False, math.nan
    taken, norm, _ = optimizer.step()
    return bool(taken), float(norm)
