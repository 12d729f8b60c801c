"""Every setting of a run, typed. The reference page of the docs is generated from this file.

Importing it loads neither torch nor ray, vllm or megatron.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class ModelConfig(Section):
    path: str = Field("", description="Hugging Face folder or hub name of the start model; empty in a recipe that makes its own")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="dtype of weights and activations, in trainer and generator")
    layers: Literal["auto", "portable", "fused"] = Field(
        "auto", description="auto: the device's own fused modules where installed; portable: plain PyTorch; fused: insist on them"
    )
    freeze_vision: bool = Field(False, description="keep the vision tower's weights as they are")
    router_aux_loss_coef: float = Field(0.0, ge=0, description="load-balancing loss of the routers; in RL it costs accuracy; 0: off")
    router_z_loss_coef: float = Field(0.0, ge=0, description="loss on large router logits; in RL it costs accuracy; 0: off")


class ColumnsConfig(Section):
    """Names of a file's own columns; empty: a layout that is known by its columns (Geo3K, MATH, GSM8K)."""

    prompt: str = Field("", description="text, or messages; with it, answer is needed")
    answer: str = Field("", description="the right answer, text or a number")
    images: str = Field("", description="images, or one; where the prompt has no <image>, they stand before it")
    source: str = Field("", description="the row's data source")
    response: str = Field("", description="reference response, for supervised steps")


class DataConfig(Section):
    train_files: list[str] = Field(
        default_factory=list, description="parquet, .jsonl or .arrow files, folders of them, or hf://NAME:SPLIT of the hub"
    )
    val_files: list[str] = Field(default_factory=list, description="held-out files; empty: no validation")
    weights: list[str] = Field(
        default_factory=list, description="how often rows of each source come, SOURCE=WEIGHT; empty: as many as they are"
    )
    columns: ColumnsConfig = ColumnsConfig()
    instruction: str = Field("", description="with columns: text behind the user's last message")
    source: str = Field("", description="data source of rows that name none")
    system_prompt: str = Field("", description="system message of rows that have none")
    on_bad_row: Literal["error", "skip"] = Field("error", description="a row that cannot be used ends the run, or is left out and counted")
    train_batch_size: int = Field(32, ge=1, description="prompts a step")
    max_prompt_length: int = Field(1024, ge=1, description="tokens, image tokens counted")
    max_response_length: int = Field(2048, ge=1, description="tokens")
    truncation: Literal["error", "left", "right", "middle"] = Field(
        "error", description="what happens to a longer prompt that was not filtered"
    )
    filter_overlong: bool = Field(True, description="drop rows longer than max_prompt_length, and count them")
    shuffle: bool = Field(True, description="a new order each epoch, from trainer.seed")
    thinking: bool = Field(True, description="the template opens <think> (true) or writes an empty thought (false)")
    num_workers: int = Field(0, ge=0, description="processes that measure prompts before a run; 0: it does so itself")
    keep_bytes: int = Field(1 << 30, ge=0, description="host memory for processed prompts; others are processed again when they come")
    cache: bool = Field(True, description="remember the lengths of prompts in the cache folder")
    val_max_rows: int = Field(0, ge=0, description="use only the first rows of the validation files; 0: all")


class ParallelConfig(Section):
    tp: int = Field(1, ge=1, description="tensor parallel size")
    pp: int = Field(1, ge=1, description="pipeline parallel size")
    vpp: int = Field(0, ge=0, description="virtual pipeline stages a device; 0: no interleaving")
    cp: int = Field(1, ge=1, description="context parallel size")
    ep: int = Field(1, ge=1, description="expert parallel size")
    etp: int = Field(1, ge=1, description="tensor parallel size inside an expert")
    sp: bool | None = Field(None, description="sequence parallel; default: on when tp > 1")
    vision_tp: bool = Field(False, description="cut the vision tower among the tensor parallel ranks; false: each has all of it")


class ProfileConfig(Section):
    """Where the time of chosen steps goes; `tandem profile RUN` shows what was written."""

    steps: list[int] = Field(default_factory=list, description="steps to write a trace of; empty: none")
    ranks: list[int] = Field(default_factory=lambda: [0], description="training ranks that write one; empty: all")
    timeline: bool = Field(False, description="also a timeline of the Python calls of controller, ranks and generators (viztracer)")


class TrainerConfig(Section):
    total_steps: int = Field(0, ge=0, description="stop after this many steps; 0: by epochs")
    total_epochs: int = Field(1, ge=1, description="passes over the training rows, when total_steps is 0")
    project_name: str = Field("", description="with experiment_name the default run_dir: runs/<project>/<experiment>-<time>")
    experiment_name: str = Field("", description="in place of the recipe's name in the default run_dir")
    save_freq: int = Field(0, ge=0, description="checkpoint every this many steps; 0: only at the end")
    async_save: bool = Field(True, description="write checkpoints while the run goes on; false: wait until each is written")
    keep_last: int = Field(0, ge=0, description="checkpoints that stay, counted from the newest; 0: all")
    keep_every: int = Field(0, ge=0, description="with keep_last: multiples of this many steps stay too; 0: none")
    keep_best: bool = Field(False, description="with keep_last: the one with the best held-out accuracy stays too")
    max_restarts: int = Field(0, ge=0, description="times a run that failed goes on by itself, from its last checkpoint")
    test_freq: int = Field(0, ge=0, description="validate every this many steps; 0: only before and after")
    trackers: list[Literal["console", "tensorboard", "wandb", "swanlab", "mlflow", "trackio"]] = Field(
        default_factory=list, description="where metrics go beside the run's folder; console: the terminal, which has them in any case"
    )
    profile: ProfileConfig = ProfileConfig()
    val_before_train: bool = Field(True, description="validate before the first step")
    nnodes: int = Field(1, ge=1, description="nodes")
    devices_per_node: int = Field(1, ge=1, description="devices (on CPU: training processes) a node")
    seed: int = Field(0, ge=0, description="the one seed every other is derived from")
    deterministic: bool = Field(False, description="same seed, same machine, same numbers")
    num_threads: int = Field(1, ge=1, description="CPU threads of a training rank (OMP_NUM_THREADS)")
    offload: bool = Field(False, description="keep parameters, gradients and optimizer in host memory while they are not in use")
    recompute: Literal["none", "selective", "full"] = Field(
        "none", description="activations computed again in the backward pass: none, those of attention and experts, whole layers"
    )
    device_memory_bytes: int = Field(0, ge=0, description="memory of a device, for the plan before a run; 0: ask the device")
    host_memory_bytes: int = Field(0, ge=0, description="memory of a node, for the plan; 0: not compared, on CPU this machine's")
    device_peak_flops: float = Field(
        0,
        ge=0,
        description="operations a second of a device, for the plan and mfu; 0: a GPU's data sheet's, else not known",
    )
    timeout_s: float = Field(3600, gt=0, description="longest wait for the training ranks in one call: start, scores, update, save")
    collective_timeout_s: float = Field(1800, gt=0, description="longest wait inside one collective of the training ranks")
    stop_grace_s: float = Field(60, ge=0, description="after Ctrl-C or SIGTERM: time to finish the step and save")

    @field_validator("trackers")
    @classmethod
    def _each_once(cls, names: list[str]) -> list[str]:
        return [name for name in dict.fromkeys(names) if name != "console"]


class BatchConfig(Section):
    packing: bool = Field(True, description="sequences end to end with cu_seqlens (true) or a padded batch (false)")
    micro_batch_size: int = Field(0, ge=0, description="sequences a micro-batch; 0: by max_tokens_per_device")
    max_tokens_per_device: int = Field(4096, ge=1, description="tokens a micro-batch, when micro_batch_size is 0")
    mini_batch_size: int = Field(0, ge=0, description="prompts an optimizer step; 0: all of the step's, strictly on-policy")
    num_epochs: int = Field(1, ge=1, description="passes over a step's samples")


class RolloutConfig(Section):
    tp: int = Field(1, ge=1, description="tensor parallel size of one generator")
    expert_parallel: bool = Field(False, description="deal whole experts out to an engine's devices instead of cutting each")
    replicas: int = Field(1, ge=0, description="generators; 0: as many as share all of the trainer's devices")
    n: int = Field(8, ge=1, description="samples a prompt")
    temperature: float = Field(1.0, gt=0, description="sampling temperature; applied again in the trainer's log-probs")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus; below 1 log-probs of trainer and generator are not comparable")
    top_k: int = Field(0, ge=0, description="0: off")
    placement: Literal["colocated", "split"] = Field("colocated", description="share the trainer's devices, or have their own")
    memory_share: float = Field(0.6, gt=0, lt=1, description="share of a device's memory for the generator (weights and cache)")
    cache_bytes: int = Field(0, ge=0, description="KV and recurrent-state cache of one generator in bytes; 0: from memory_share")
    max_model_len: int = Field(0, ge=0, description="longest sequence; 0: max_prompt_length + max_response_length")
    max_num_seqs: int = Field(64, ge=1, description="sequences decoded together in one generator")
    direct_load: bool = Field(
        True, description="on CPU: copy new weights straight into vLLM's tensors, with packing by vLLM; false: by vLLM's own, slower reload"
    )
    enforce_eager: bool = Field(False, description="no graph capture or compilation")
    num_threads: int = Field(1, ge=1, description="CPU threads of a generator")
    timeout_s: float = Field(1800, gt=0, description="longest wait for the start of a generator")
    health_timeout_s: float = Field(
        300, gt=0, description="a generator that has not finished one decoding step, or taken one bucket, is hung"
    )
    max_failures: int = Field(3, ge=0, description="generators that may fail in a row before the run stops; each is started anew")
    router_replay: bool = Field(
        False, description="record the experts that the generator chooses for each token, and send the trainer's tokens to the same ones"
    )
    max_staleness: int = Field(
        0, ge=0, le=1, description="1: the next batch is generated while this one trains, by weights one step old; needs placement=split"
    )
    environment: str = Field(
        "", description="what the model talks to in rollouts of several turns: calculator, or FILE.py:CLASS; empty: one turn, no tools"
    )
    max_turns: int = Field(8, ge=1, description="with an environment: most turns of the model in a sample")
    environment_timeout_s: float = Field(30, gt=0, description="longest wait for one answer of the environment; the sample then ends")
    val_temperature: float = Field(1.0, ge=0, description="temperature of validation samples; 0: greedy")
    val_n: int = Field(1, ge=1, description="validation samples a prompt")


class KLConfig(Section):
    coef: float = Field(0.0, ge=0, description="weight of the KL term; 0: no reference model at all")
    kind: Literal["k1", "abs", "k2", "k3"] = Field("k3", description="estimator; k3 is the low-variance one")
    where: Literal["loss", "reward"] = Field("loss", description="added to the loss, or its sum over a response taken from the reward")
    target: float = Field(0.0, ge=0, description="mean KL a token that coef is adapted to; 0: coef stays as it is")
    horizon: int = Field(10_000, ge=1, description="samples over which coef is adapted by a fifth of itself, at most")


class CorrectionConfig(Section):
    """Weights r = p(trainer) / p(generator) for what differs between the policy that is trained and the one that sampled."""

    kind: Literal["none", "truncated", "masked", "icepop"] = Field(
        "none", description="min(r, max); r up to max, else 0; r in bounds, else 0"
    )
    level: Literal["token", "sequence"] = Field("token", description="r of each token, or of its whole response")
    max: float = Field(2.0, gt=0, description="upper bound of r")
    min: float = Field(0.5, ge=0, description="lower bound of r, for icepop")


class AlgorithmConfig(Section):
    advantage: str = Field("grpo", description="advantage estimator, a name in tandem.algorithms")
    loss: str = Field("ppo_clip", description="policy loss, a name in tandem.algorithms")
    norm_by_std: bool = Field(True, description="divide centred rewards by the group's standard deviation")
    clip_low: float = Field(0.2, gt=0, le=1, description="the ratio is clipped at 1 - clip_low; gmpo: the log ratio at -clip_low")
    clip_high: float = Field(0.2, gt=0, description="the ratio is clipped at 1 + clip_high; gmpo: the log ratio at clip_high")
    clip_dual: float = Field(0.0, ge=0, description="dual clip bound for negative advantages (3 is usual); 0: off")
    tau_positive: float = Field(1.0, gt=0, description="sapo: steepness of the gate of tokens with positive advantages")
    tau_negative: float = Field(1.05, gt=0, description="sapo: steepness of the gate of all others; larger is stricter")
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = Field(
        "token_mean", description="how per-token losses become one number"
    )
    dynamic_sampling: int = Field(
        0, ge=0, description="most further batches a step draws to replace prompts whose samples all earn the same (DAPO); 0: off"
    )
    mask_overlong: bool = Field(False, description="no loss on responses that were cut off at data.max_response_length (DAPO)")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    gamma: float = Field(1.0, ge=0, le=1, description="gae: discount of a reward for each token that it lies ahead")
    lam: float = Field(0.95, ge=0, le=1, description="gae: 1 trusts what was earned, 0 the critic's value of the next token")
    whiten: bool = Field(True, description="gae: centre advantages and divide them by their deviation, over all tokens of the step")
    old_logprobs: Literal["trainer", "rollout"] = Field("trainer", description="where the ratio's denominator comes from")
    kl: KLConfig = KLConfig()
    correction: CorrectionConfig = CorrectionConfig()


class OptimizerConfig(Section):
    lr: float = Field(1e-6, gt=0, description="learning rate of AdamW, after the warm-up")
    betas: tuple[float, float] = Field((0.9, 0.999), description="decay rates of AdamW's two moments")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon")
    weight_decay: float = Field(0.0, ge=0, description="of matrices; norms, biases and decay rates have none")
    clip_grad: float = Field(1.0, ge=0, description="largest global gradient norm; 0: off")
    warmup_steps: int = Field(0, ge=0, description="linear warm-up")
    schedule: Literal["constant", "cosine", "wsd"] = Field(
        "constant", description="after the warm-up; wsd: constant, then a straight line down"
    )
    decay_share: float = Field(0.2, gt=0, le=1, description="wsd: share of all steps in which the rate falls")
    min_lr_share: float = Field(0.0, ge=0, lt=1, description="share of lr to which cosine and wsd fall")
    max_skipped_steps: int = Field(
        5,
        ge=0,
        description="steps in a row whose gradients are not finite, and which are skipped, before the run saves and stops; 0: never",
    )
    on_cpu: bool = Field(False, description="fp32 weights and moments stay in host memory, and a step is computed there")


class CriticConfig(Section):
    """The value model that algorithm.advantage=gae trains beside the policy, in the same ranks."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-5)
    clip: float = Field(0.2, ge=0, description="a value that moves further than this in one step's updates is not pushed on; 0: off")
    warmup_steps: int = Field(0, ge=0, description="first steps in which the critic learns and the policy does not")


class WarmStartConfig(Section):
    """Supervised steps on the reference responses before the first RL step."""

    max_steps: int = Field(0, ge=0, description="0: no warm start")
    stop_probability: float = Field(
        0.0, ge=0, le=1, description="stop once the held-out reference answers are this probable; 0: run all steps"
    )
    batch_size: int = Field(32, ge=1, description="rows a step")
    lr: float = Field(1e-3, gt=0, description="learning rate, after the warm-up")
    warmup_steps: int = Field(20, ge=0, description="linear warm-up of the learning rate")
    weight_decay: float = Field(0.01, ge=0, description="as in optimizer.weight_decay")
    test_freq: int = Field(20, ge=1, description="look at the held-out probability every this many steps")
    val_files: list[str] = Field(default_factory=list, description="rows that decide when to stop; empty: data.val_files")


class RewardConfig(Section):
    name: str = Field("geo3k", description="grader: a name in tandem.rewards, FILE.py:FUNCTION, or an address http://...")
    also: list[str] = Field(default_factory=list, description="further graders whose scores are added, each WEIGHT*NAME: 0.2*length:800")
    format_weight: float = Field(0.1, ge=0, le=1, description="share of the format score in the reward")
    overlong_buffer: int = Field(
        0, ge=0, description="last tokens before data.max_response_length over which a penalty rises to overlong_factor (DAPO); 0: off"
    )
    overlong_factor: float = Field(1.0, gt=0, description="reward that a response of full length loses")
    timeout_s: float = Field(5.0, gt=0, description="limit of one grading; then score 0, reason `timeout`")
    num_workers: int = Field(1, ge=1, description="grader processes")
    batch_size: int = Field(16, ge=1, description="responses in one call of a function that takes several, or is async")
    memory_limit_bytes: int = Field(2 << 30, ge=0, description="address space of a grader process; 0: no limit")


class FidelityConfig(Section):
    """Limits on |log p(trainer) - log p(generator)|; past one of them the run stops with a diagnosis. 0: not checked."""

    max_logprob_abs_diff_mean: float = Field(0.05, ge=0, description="limit of the mean over response tokens")
    max_logprob_abs_diff_max: float = Field(0.0, ge=0, description="limit of the largest difference of one token")
    max_kl_k3: float = Field(0.0, ge=0, description="limit of the k3 estimate of KL(generator || trainer)")
    max_kl_ref_at_start: float = Field(1e-6, ge=0, description="reference KL before the first update must be this close to 0")


class SyncConfig(Section):
    transport: Literal["shared_memory", "device", "collective"] = Field(
        "shared_memory",
        description="how weights travel: by the host's memory; from device to device within a node (colocated); by NCCL or HCCL (split)",
    )
    bucket_bytes: int = Field(256 << 20, ge=1 << 20, description="bytes of one bucket of weights; larger tensors are cut")
    verify_share: float = Field(
        0.1, ge=0, le=1, description="share of tensors whose checksums are compared after the first step; up to then it is all"
    )
    canary_tokens: int = Field(
        8, ge=0, description="tokens each generator decodes after a publication, for the trainer to score; 0, or with trainer.offload: none"
    )


class RecordConfig(Section):
    """What a run keeps of its samples beside their text and tokens."""

    replay: str = Field("", description="set by `tandem debug train-only`: the run whose rollouts are trained on instead of new ones")
    image_bytes: int = Field(256 << 20, ge=0, description="pictures of sampled rows in rollouts/images, in all, for the report; 0: none")


class ClusterConfig(Section):
    address: str = Field(
        "", description="Ray head to join, host:port; auto: the cluster that runs here, else one of its own; empty: one of its own"
    )
    master_port: int = Field(0, ge=0, le=65535, description="rendezvous port of the training ranks; 0: a free one")
    dashboard_port: int = Field(0, ge=0, le=65535, description="port of Ray's dashboard on loopback; 0: no dashboard")
    object_store_bytes: int = Field(
        0, ge=0, description="shared memory of a local Ray cluster; 0: 256 MiB on CPU, Ray's own choice elsewhere"
    )


class Config(Section):
    recipe: str = Field("", description="the name this configuration came from")
    prepare: Literal["", "demo", "geo3k"] = Field(
        "", description="what is made before the run: `demo` draws data and a tiny model, `geo3k` fetches Geo3K where its files are absent"
    )
    run_dir: str = Field("", description="folder of the run; empty: runs/<recipe>-<time>")
    device: Literal["auto", "npu", "gpu", "cpu"] = Field("auto", description="auto: the variable DEVICE, else what this machine has")
    resume: str = Field(
        "never", description="never; auto: from the newest checkpoint in run_dir, if there is one; or the path of a checkpoint or a run"
    )
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    parallel: ParallelConfig = ParallelConfig()
    trainer: TrainerConfig = TrainerConfig()
    batch: BatchConfig = BatchConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    reward: RewardConfig = RewardConfig()
    fidelity: FidelityConfig = FidelityConfig()
    sync: SyncConfig = SyncConfig()
    record: RecordConfig = RecordConfig()
    cluster: ClusterConfig = ClusterConfig()
