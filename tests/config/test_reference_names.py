"""Arguments in the style of verl's launch scripts mean the same here, or are refused with the reason; none is dropped."""

import pytest

from tandem.config.keys import SETTINGS
from tandem.config.load import load
from tandem.config.reference_names import translate
from tandem.config.reference_table import ALWAYS, FOLLOWS, NO_COUNTERPART, RENAMED, SWITCHES, VALUES
from tandem.config.schema import Config
from tandem.errors import UserError

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.ref."
NPU = {"DEVICE": "npu"}


def of(*overrides: str, recipe: str = "qwen3_5_35b_a3b") -> Config:
    return load(recipe, overrides, NPU)


def message(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        of(*overrides)
    return str(caught.value)


def test_the_table_names_keys_that_exist_and_none_twice() -> None:
    targets = [key for keys in RENAMED.values() for key in keys] + list(FOLLOWS.values()) + [switch.key for switch in SWITCHES.values()]
    assert set(targets) | set(VALUES) <= set(SETTINGS)
    names = [*RENAMED, *SWITCHES, *FOLLOWS, *ALWAYS, *NO_COUNTERPART]
    assert len(names) == len(set(names))
    assert not set(names) & set(SETTINGS), "a name of theirs that means something else here"


# What the two scripts pass, with the value of the 35B one on NPU where they differ.
SCRIPT = [
    "data.train_files=/d/train.parquet", "data.val_files=/d/test.parquet", "data.train_batch_size=32", "data.max_prompt_length=1024",
    "data.max_response_length=2048", "data.truncation=error", "data.filter_overlong_prompts=True", "model_engine=megatron",
    "actor_rollout_ref.model.path=/m", "actor_rollout_ref.model.trust_remote_code=True", "actor_rollout_ref.model.use_remove_padding=False",
    ACTOR + "optim.lr=1e-6", ACTOR + "ppo_mini_batch_size=32", ACTOR + "ppo_micro_batch_size_per_gpu=1",
    ACTOR + "ppo_max_token_len_per_gpu=4096", ACTOR + "use_dynamic_bsz=False", ACTOR + "use_kl_loss=True", ACTOR + "kl_loss_coef=0.01",
    ACTOR + "kl_loss_type=low_var_kl", ACTOR + "entropy_coeff=0", ACTOR + "megatron.use_mbridge=True",
    ACTOR + "megatron.vanilla_mbridge=False", ACTOR + "megatron.use_remove_padding=False", ACTOR + "megatron.tensor_model_parallel_size=2",
    ACTOR + "megatron.pipeline_model_parallel_size=2", ACTOR + "megatron.context_parallel_size=1",
    ACTOR + "megatron.expert_model_parallel_size=8", ACTOR + "megatron.expert_tensor_parallel_size=1",
    ACTOR + "megatron.virtual_pipeline_model_parallel_size=null", ACTOR + "megatron.param_offload=True",
    ACTOR + "megatron.optimizer_offload=True", ACTOR + "megatron.grad_offload=True", ACTOR + "megatron.dtype=bfloat16",
    "++" + ACTOR + "megatron.override_transformer_config.attention_backend=auto",
    "+" + ACTOR + "megatron.override_transformer_config.recompute_method=uniform",
    "+" + ACTOR + "megatron.override_transformer_config.recompute_granularity=full",
    "+" + ACTOR + "megatron.override_transformer_config.recompute_num_layers=1",
    "+" + ACTOR + "megatron.override_transformer_config.moe_aux_loss_coeff=0.01",
    "+" + ACTOR + "megatron.override_transformer_config.moe_z_loss_coeff=0.001",
    "+" + ACTOR + "megatron.override_transformer_config.moe_token_dispatcher_type=alltoall",
    "+" + ACTOR + "optim.override_optimizer_config.optimizer_offload_fraction=1",
    "+" + ACTOR + "optim.override_optimizer_config.optimizer_cpu_offload=True",
    ROLLOUT + "name=vllm", ROLLOUT + "tensor_model_parallel_size=8", ROLLOUT + "gpu_memory_utilization=0.6", ROLLOUT + "n=5",
    ROLLOUT + "dtype=bfloat16", ROLLOUT + "calculate_log_probs=True", ROLLOUT + "mode=async",
    "+" + ROLLOUT + "engine_kwargs.vllm.max_model_len=3072",
    REF + "megatron.tensor_model_parallel_size=2", REF + "megatron.pipeline_model_parallel_size=2",
    REF + "megatron.expert_model_parallel_size=8", REF + "megatron.param_offload=True", "actor_rollout_ref.nccl_timeout=10800",
    "algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=False", "trainer.critic_warmup=0", "trainer.logger=['console']",
    "trainer.project_name=p", "trainer.experiment_name=e", "trainer.n_gpus_per_node=16", "trainer.nnodes=1", "trainer.save_freq=20",
    "trainer.default_local_dir=/s", "trainer.val_before_train=False", "trainer.test_freq=5", "trainer.total_epochs=15",
]  # fmt: skip


def test_the_command_line_of_a_script_is_the_recipe_with_what_it_changes() -> None:
    ours = (
        "data.train_files=/d/train.parquet data.val_files=/d/test.parquet model.path=/m batch.packing=false batch.micro_batch_size=1 "
        "model.router_aux_loss_coef=0.01 model.router_z_loss_coef=0.001 rollout.max_model_len=3072 trainer.project_name=p run_dir=/s "
        "trainer.experiment_name=e trainer.collective_timeout_s=10800 optimizer.on_cpu=true"
    )
    assert of(*SCRIPT) == of(*ours.split())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (ACTOR + "megatron.tensor_model_parallel_size=1", "parallel.tp=1"),
        (ACTOR + "megatron.virtual_pipeline_model_parallel_size=5", "parallel.vpp=5"),
        (ACTOR + "megatron.sequence_parallel=True", "parallel.sp=true"),
        (ACTOR + "kl_loss_type=kl", "algorithm.kl.kind=k1"),
        (ACTOR + "kl_loss_type=mse", "algorithm.kl.kind=k2"),
        (ACTOR + "kl_loss_type='abs'", "algorithm.kl.kind=abs"),
        (ACTOR + "loss_agg_mode=seq-mean-token-mean", "algorithm.aggregation=sequence_mean"),
        (ACTOR + "loss_agg_mode=token-mean", "algorithm.aggregation=token_mean"),
        (ACTOR + "clip_ratio=0.3", "algorithm.clip_low=0.3 algorithm.clip_high=0.3"),
        (ACTOR + "optim.lr_warmup_steps=-1", "optimizer.warmup_steps=0"),
        (ACTOR + "optim.betas=[0.9,0.95]", "optimizer.betas=[0.9,0.95]"),
        (ACTOR + "megatron.override_transformer_config.recompute_granularity=null", "trainer.recompute=none"),
        (ROLLOUT + "top_k=-1", "rollout.top_k=0"),
        (ROLLOUT + "enforce_eager=True", "rollout.enforce_eager=true"),
        (ROLLOUT + "val_kwargs.temperature=0.7", "rollout.val_temperature=0.7"),
        ("algorithm.use_kl_in_reward=True", "algorithm.kl.where=reward"),
        ("algorithm.adv_estimator=gae", "algorithm.advantage=gae"),
        ("critic.optim.lr=2e-5", "critic.optimizer.lr=2e-5"),
        ("trainer.critic_warmup=3", "critic.warmup_steps=3"),
        ("trainer.total_training_steps=3", "trainer.total_steps=3"),
        ("trainer.total_training_steps=null", "trainer.total_steps=0"),
        ("trainer.save_freq=-1", "trainer.save_freq=0"),
        ("trainer.resume_mode=disable", "resume=never"),
        ("trainer.val_before_train=True", "trainer.val_before_train=true"),
        ("+trainer.seed=3", "trainer.seed=3"),
        ("data.train_files=['/a','/b']", "data.train_files=[/a,/b]"),
        ("data.val_max_samples=-1", "data.val_max_rows=0"),
        ("data.filter_overlong_prompts_workers=8", "data.num_workers=8"),
        ("data.truncation='left'", "data.truncation=left"),
        ("data.train_files=\"['/a','/b']\"", "data.train_files=[/a,/b]"),
        ("trainer.project_name='p'", "trainer.project_name=p"),
        ("trainer.max_actor_ckpt_to_keep=3", "trainer.keep_last=3"),
        ("trainer.max_actor_ckpt_to_keep=null", "trainer.keep_last=0"),
        ("data.image_key=images", "recipe=qwen3_5_35b_a3b"),
        ("data.apply_chat_template_kwargs.enable_thinking=False", "data.thinking=false"),
        (ROLLOUT + "response_length=2048", "data.max_response_length=2048"),
    ],
)
def test_a_name_and_its_value_are_translated(theirs: str, ours: str) -> None:
    assert of(theirs) == of(*ours.split())


def test_the_flag_beside_a_number_decides_whether_the_number_counts() -> None:
    flag, coef = ACTOR + "use_kl_loss", ACTOR + "kl_loss_coef=0.02"
    assert of(f"{flag}=False", coef).algorithm.kl.coef == of(coef, f"{flag}=False").algorithm.kl.coef == 0
    assert of(f"{flag}=True", coef).algorithm.kl.coef == 0.02
    assert of(f"{flag}=True", recipe="qwen3_5_122b_a10b").algorithm.kl.coef == 0.01
    flag, size = ACTOR + "use_dynamic_bsz", ACTOR + "ppo_micro_batch_size_per_gpu=2"
    assert of(f"{flag}=True", size).batch.micro_batch_size == 0
    assert of(f"{flag}=False", size).batch.micro_batch_size == 2
    assert of(f"{flag}=False").batch.micro_batch_size == 1
    assert "True or False" in message(f"{flag}=maybe")


def test_later_arguments_win_whatever_their_style() -> None:
    assert of(ROLLOUT + "n=3", "rollout.n=4").rollout.n == 4
    assert of("rollout.n=4", ROLLOUT + "n=3").rollout.n == 3
    assert of("algorithm.kl.coef=1", "algorithm.kl={coef: 2}", "algorithm.kl.coef=3").algorithm.kl.coef == 3


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("trainer.logger=['console','clearml']", "trainer.trackers"),
        (ROLLOUT + "name=sglang", "vLLM is the one generator"),
        (ROLLOUT + "log_prob_micro_batch_size_per_gpu=1", "batch.micro_batch_size"),
        (REF + "log_prob_use_dynamic_bsz=False", "batch.micro_batch_size"),
        (ROLLOUT + "checkpoint_engine.update_weights_bucket_megabytes=4096", "sync.bucket_bytes"),
        ("+" + ACTOR + "megatron.override_transformer_config.moe_grouped_gemm=True", "model.layers=auto|portable|fused"),
        (ACTOR + "checkpoint.save_contents=['model']", "all of the training state"),
        ("trainer.val_only=True", "tandem eval"),
        ("critic.model.path=/m", "the policy's weights"),
        (ROLLOUT + "tensor_model_parallel_sise=4", "rollout.tp"),
        (ACTOR + "ppo_mini_batchsize=4", "batch.mini_batch_size"),
        (REF + "megatron.tensor_model_parallel_size=4", "parallel.tp is 2"),
        (ACTOR + "megatron.param_offload=maybe", "trainer.offload"),
        ("trainer.n_gpu_per_node=4", "did you mean"),
        ("data.image_key=pictures", "data.columns.images"),
        ("data.dataloader_num_workers=8", "data.num_workers"),
        ("data.return_raw_chat=True", "read as messages"),
        ("algorithm.filter_groups.enable=True", "algorithm.dynamic_sampling"),
        ("algorithm.rollout_correction.rollout_is=token", "algorithm.correction"),
        (ACTOR + "fsdp_config.param_offload=True", "trainer.offload"),
        (ACTOR + "ppo_micro_batch_size=8", "batch.micro_batch_size"),
        (ROLLOUT + "enable_chunked_prefill=False", "settings of vLLM"),
        (ROLLOUT + "response_length=100", "data.max_response_length is 2048"),
        ("trainer.resume_mode=resume_path", "resume=FOLDER"),
    ],
)
def test_a_name_without_a_counterpart_is_refused_with_the_reason(override: str, part: str) -> None:
    said = message(override)
    assert f"override `{override}`" in said
    assert part in said


def test_the_mode_that_goes_with_a_named_checkpoint_does_not_contradict_it() -> None:
    mode, path = "trainer.resume_mode=resume_path", "trainer.resume_from_path=/c/step_5"
    assert of(mode, path) == of(path, mode) == of("resume=/c/step_5")


def test_two_names_of_one_setting_must_agree() -> None:
    said = message(ACTOR + "megatron.param_offload=True", ACTOR + "megatron.optimizer_offload=False")
    assert "contradict" in said
    assert "trainer.offload" in said
    assert of(ACTOR + "megatron.param_offload=False", ACTOR + "megatron.grad_offload=False").trainer.offload is False
    assert of("parallel.tp=1", REF + "megatron.tensor_model_parallel_size=1").parallel.tp == 1


def test_an_argument_of_ours_is_not_touched() -> None:
    (given,) = translate(["run_dir='a=b'"]).settings
    assert (given.key, given.text) == ("run_dir", "'a=b'")
