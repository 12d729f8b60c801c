"""The names of verl's GRPO launch scripts for Megatron, and what each is here. A table; `reference_names.py` reads it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Switch:
    """A flag beside a number; here the number alone says it, and 0 is off."""

    key: str
    zero_when: bool  # the flag's value that makes the number 0, whatever else sets it
    otherwise: str  # the number when the flag has the other value and nothing sets it: what both scripts have


_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.ref."
_MEGATRON, _TRANSFORMER = _ACTOR + "megatron.", _ACTOR + "megatron.override_transformer_config."

# Another name for our setting, or settings. Names that are the same on both sides are not listed.
RENAMED: dict[str, tuple[str, ...]] = {
    "algorithm.adv_estimator": ("algorithm.advantage",),
    "algorithm.norm_adv_by_std_in_grpo": ("algorithm.norm_by_std",),
    "algorithm.use_kl_in_reward": ("algorithm.kl.where",),
    "algorithm.kl_ctrl.kl_coef": ("algorithm.kl.coef",),
    "data.filter_overlong_prompts": ("data.filter_overlong",),
    "data.val_max_samples": ("data.val_max_rows",),
    "trainer.n_gpus_per_node": ("trainer.devices_per_node",),
    "trainer.total_training_steps": ("trainer.total_steps",),
    "trainer.default_local_dir": ("run_dir",),
    "trainer.resume_mode": ("resume",),
    "trainer.resume_from_path": ("resume",),
    "trainer.device": ("device",),
    "actor_rollout_ref.nccl_timeout": ("trainer.collective_timeout_s",),
    "actor_rollout_ref.model.path": ("model.path",),
    "actor_rollout_ref.model.use_remove_padding": ("batch.packing",),
    _ACTOR + "ppo_mini_batch_size": ("batch.mini_batch_size",),
    _ACTOR + "ppo_micro_batch_size_per_gpu": ("batch.micro_batch_size",),
    _ACTOR + "ppo_max_token_len_per_gpu": ("batch.max_tokens_per_device",),
    _ACTOR + "ppo_epochs": ("batch.num_epochs",),
    _ACTOR + "grad_clip": ("optimizer.clip_grad",),
    _ACTOR + "kl_loss_coef": ("algorithm.kl.coef",),
    _ACTOR + "kl_loss_type": ("algorithm.kl.kind",),
    _ACTOR + "entropy_coeff": ("algorithm.entropy_coef",),
    _ACTOR + "loss_agg_mode": ("algorithm.aggregation",),
    _ACTOR + "policy_loss.loss_mode": ("algorithm.loss",),
    _ACTOR + "clip_ratio": ("algorithm.clip_low", "algorithm.clip_high"),
    _ACTOR + "clip_ratio_low": ("algorithm.clip_low",),
    _ACTOR + "clip_ratio_high": ("algorithm.clip_high",),
    _ACTOR + "clip_ratio_c": ("algorithm.clip_dual",),
    _ACTOR + "freeze_vision_tower": ("model.freeze_vision",),
    _ACTOR + "optim.lr": ("optimizer.lr",),
    _ACTOR + "optim.betas": ("optimizer.betas",),
    _ACTOR + "optim.weight_decay": ("optimizer.weight_decay",),
    _ACTOR + "optim.clip_grad": ("optimizer.clip_grad",),
    _ACTOR + "optim.lr_warmup_steps": ("optimizer.warmup_steps",),
    _ACTOR + "optim.lr_decay_style": ("optimizer.schedule",),
    _ACTOR + "optim.override_optimizer_config.optimizer_cpu_offload": ("optimizer.on_cpu",),
    _MEGATRON + "tensor_model_parallel_size": ("parallel.tp",),
    _MEGATRON + "pipeline_model_parallel_size": ("parallel.pp",),
    _MEGATRON + "virtual_pipeline_model_parallel_size": ("parallel.vpp",),
    _MEGATRON + "context_parallel_size": ("parallel.cp",),
    _MEGATRON + "expert_model_parallel_size": ("parallel.ep",),
    _MEGATRON + "expert_tensor_parallel_size": ("parallel.etp",),
    _MEGATRON + "sequence_parallel": ("parallel.sp",),
    _MEGATRON + "use_remove_padding": ("batch.packing",),
    _MEGATRON + "dtype": ("model.dtype",),
    _MEGATRON + "param_offload": ("trainer.offload",),
    _MEGATRON + "grad_offload": ("trainer.offload",),
    _MEGATRON + "optimizer_offload": ("trainer.offload",),
    _TRANSFORMER + "recompute_granularity": ("trainer.recompute",),
    _TRANSFORMER + "moe_aux_loss_coeff": ("model.router_aux_loss_coef",),
    _TRANSFORMER + "moe_z_loss_coeff": ("model.router_z_loss_coef",),
    _ROLLOUT + "tensor_model_parallel_size": ("rollout.tp",),
    _ROLLOUT + "gpu_memory_utilization": ("rollout.memory_share",),
    _ROLLOUT + "n": ("rollout.n",),
    _ROLLOUT + "temperature": ("rollout.temperature",),
    _ROLLOUT + "top_p": ("rollout.top_p",),
    _ROLLOUT + "top_k": ("rollout.top_k",),
    _ROLLOUT + "max_num_seqs": ("rollout.max_num_seqs",),
    _ROLLOUT + "max_model_len": ("rollout.max_model_len",),
    _ROLLOUT + "engine_kwargs.vllm.max_model_len": ("rollout.max_model_len",),
    _ROLLOUT + "enforce_eager": ("rollout.enforce_eager",),
    _ROLLOUT + "val_kwargs.n": ("rollout.val_n",),
    _ROLLOUT + "val_kwargs.temperature": ("rollout.val_temperature",),
}

SWITCHES = {
    _ACTOR + "use_kl_loss": Switch("algorithm.kl.coef", zero_when=False, otherwise="0.01"),
    _ACTOR + "use_dynamic_bsz": Switch("batch.micro_batch_size", zero_when=True, otherwise="1"),
}

# Set apart there, one setting here: it may be given, with the value that the one setting has.
FOLLOWS = {
    _REF + "megatron.tensor_model_parallel_size": "parallel.tp",
    _REF + "megatron.pipeline_model_parallel_size": "parallel.pp",
    _REF + "megatron.virtual_pipeline_model_parallel_size": "parallel.vpp",
    _REF + "megatron.context_parallel_size": "parallel.cp",
    _REF + "megatron.expert_model_parallel_size": "parallel.ep",
    _REF + "megatron.expert_tensor_parallel_size": "parallel.etp",
    _REF + "megatron.param_offload": "trainer.offload",
    _ROLLOUT + "dtype": "model.dtype",
}

# What happens here in any case: name -> the values that ask for it, and why no other can be had. Compared in lower case.
ALWAYS: dict[str, tuple[tuple[str, ...], str]] = {
    "model_engine": (("megatron",), "Megatron-Core is the one training engine"),
    "trainer.critic_warmup": (("0",), "there is no critic to warm up"),
    "trainer.logger": (("console", "[console]", "['console']", '["console"]'), "a run is followed in its metrics.jsonl and report.html"),
    "actor_rollout_ref.hybrid_engine": (("true",), "rollout.placement says whether trainer and generator share devices"),
    "actor_rollout_ref.model.trust_remote_code": (("true", "false"), "no code of a model folder is ever run"),
    "actor_rollout_ref.model.lora_rank": (("0",), "all weights are trained"),
    _ACTOR + "strategy": (("megatron",), "Megatron-Core is the one training engine"),
    _ACTOR + "optim.lr_warmup_steps_ratio": (("0", "0.0"), "optimizer.warmup_steps is a number of steps"),
    _ACTOR + "optim.override_optimizer_config.optimizer_offload_fraction": (("1", "1.0"), "optimizer.on_cpu moves all of it"),
    _MEGATRON + "use_mbridge": (("true",), "Hugging Face folders are read as they are"),
    _MEGATRON + "vanilla_mbridge": (("false",), "weights are mapped by Tandem's own table, on every device"),
    _TRANSFORMER + "recompute_method": (("uniform",), "trainer.recompute=full recomputes every layer"),
    _TRANSFORMER + "recompute_num_layers": (("1",), "trainer.recompute=full recomputes every layer"),
    _TRANSFORMER + "attention_backend": (("auto",), "model.layers says what layers are made of"),
    _TRANSFORMER + "moe_token_dispatcher_type": (("alltoall",), "it is the dispatcher that takes packed sequences"),
    _ROLLOUT + "name": (("vllm",), "vLLM is the one generator"),
    _ROLLOUT + "mode": (("sync", "async"), "requests are always batched continuously"),
    _ROLLOUT + "calculate_log_probs": (("true",), "trainer and generator are compared at every step"),
    _ROLLOUT + "free_cache_engine": (("true",), "see rollout.placement and trainer.offload"),
}

# No counterpart: a name, or with a dot at its end all names that start so -> why, and what to set instead.
NO_COUNTERPART = {
    "data.seed": "trainer.seed is the one seed",
    "data.filter_overlong_prompts_workers": "prompts are processed once, in the controller",
    "data.image_key": "the column of images is called images",
    "trainer.val_only": "`tandem eval RECIPE` does that",
    "trainer.balance_batch": "sequences are dealt out by their lengths in any case",
    "trainer.rollout_data_dir": "rollouts are always written to the run's folder, rollouts/step_*.parquet",
    "trainer.validation_data_dir": "rollouts are always written to the run's folder, rollouts/step_*.parquet",
    "trainer.log_val_generations": "rollouts are always written to the run's folder, rollouts/step_*.parquet",
    "trainer.max_actor_ckpt_to_keep": "all checkpoints are kept; trainer.save_freq says how many there are",
    "algorithm.gamma": "a response has one reward, at its end",
    "algorithm.lam": "a response has one reward, at its end",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "trainer.recompute=none|selective|full",
    _ACTOR + "checkpoint.": "a checkpoint always holds all of the training state",
    _ACTOR + "use_torch_compile": "model.layers says what layers are made of",
    _ACTOR + "optim.override_optimizer_config.": "optimizer.on_cpu decides what goes with it",
    _TRANSFORMER: "model.layers=auto|portable|fused says which kernels and fusions are used",
    _REF + "megatron.override_transformer_config.": "the reference model is the policy with other weights, so model.* holds for it",
    _REF + "log_prob_": "log-probs are taken in the micro-batches of the update: batch.micro_batch_size, batch.max_tokens_per_device",
    _ROLLOUT + "log_prob_": "log-probs are taken in the micro-batches of the update: batch.micro_batch_size, batch.max_tokens_per_device",
    _ROLLOUT + "data_parallel_size": "rollout.replicas is the number of generators, rollout.tp the devices of one",
    _ROLLOUT + "expert_parallel_size": "rollout.replicas is the number of generators, rollout.tp the devices of one",
    _ROLLOUT + "checkpoint_engine.": "sync.bucket_bytes is the size of a bucket of weights, in bytes",
    _ROLLOUT + "load_format": "a generator's weights always come from the trainer",
    _ROLLOUT + "val_kwargs.do_sample": "rollout.val_temperature=0 is greedy",
    _ROLLOUT + "engine_kwargs.": "rollout.* holds the settings of vLLM that may change",
    "critic.": "algorithm.advantage=grpo needs no critic",
    "reward_model.": "reward.name names a grader",
    "reward.reward_model.": "reward.name names a grader",
    "custom_reward_function.": "reward.name names a grader; CONTRIBUTING.md shows how to add one",
    "ray_kwargs.": "cluster.* holds what is said to Ray",
    "hydra.": "a run's folder is run_dir",
}

# Values that are written otherwise there, by our key.
_NO_NUMBER = {"null": "0", "None": "0", "-1": "0"}
VALUES: dict[str, dict[str, str]] = {
    "device": {"NPU": "npu", "GPU": "gpu", "CPU": "cpu", "cuda": "gpu"},
    "resume": {"disable": "never"},
    "algorithm.advantage": {"gae": "ppo"},
    "algorithm.loss": {"vanilla": "ppo_clip", "geo_mean": "gmpo"},
    "algorithm.kl.kind": {"low_var_kl": "k3", "kl": "k1", "mse": "k2"},
    "algorithm.kl.where": {"True": "reward", "true": "reward", "False": "loss", "false": "loss"},
    "algorithm.aggregation": {
        "token-mean": "token_mean",
        "seq-mean-token-mean": "sequence_mean",
        "seq-mean-token-sum-norm": "constant",
    },
    "trainer.recompute": {"null": "none", "None": "none"},
    "optimizer.schedule": {"WSD": "wsd"},
    "parallel.vpp": _NO_NUMBER,
    "data.val_max_rows": _NO_NUMBER,
    "trainer.total_steps": _NO_NUMBER,
    "trainer.save_freq": _NO_NUMBER,
    "trainer.test_freq": _NO_NUMBER,
    "optimizer.warmup_steps": _NO_NUMBER,
    "rollout.top_k": _NO_NUMBER,
    "rollout.max_model_len": _NO_NUMBER,
}
