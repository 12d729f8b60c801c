"""Rules between settings. Each raises UserError with the reason and the nearest legal value; none looks at files, devices or the model.

Rules that depend on the model (heads, layers, experts) belong to the plan.
"""

import math

from tandem.config.algorithm_checks import ALGORITHM_RULES
from tandem.config.algorithm_checks import CRITIC_ADVANTAGES as CRITIC_ADVANTAGES
from tandem.config.algorithm_checks import GROUP_ADVANTAGES as GROUP_ADVANTAGES
from tandem.config.algorithm_checks import has_critic as has_critic
from tandem.config.schema import Config
from tandem.errors import UserError

VLLM_TEMPERATURES = (0.01, 2.0)  # and greedily at 0; it would raise a smaller one to 0.01 with no more than a warning


def world_size(config: Config) -> int:
    """Training ranks."""
    return config.trainer.nnodes * config.trainer.devices_per_node


def model_parallel_size(config: Config) -> int:
    """Ranks that hold one copy of the model's dense part."""
    return config.parallel.tp * config.parallel.pp * config.parallel.cp


def data_parallel_size(config: Config) -> int:
    """Copies of the model's dense part; each trains on its own share of a batch."""
    return world_size(config) // model_parallel_size(config)


def check(config: Config) -> None:
    """All rules, in the order below. Raises UserError for the first that is broken."""
    for rule in RULES:
        rule(config)


def world_divides_into_model_copies(config: Config) -> None:
    world, model = world_size(config), model_parallel_size(config)
    if world % model:
        raise UserError(
            f"{world} training ranks do not hold whole copies of the model",
            f"trainer.nnodes * trainer.devices_per_node = {world} must be a multiple of parallel.tp * pp * cp = {model}",
            f"use {_nearest_multiple(world, model)} ranks, or a tp * pp * cp of {_nearest_divisor(world, model)}",
        )


def experts_divide_the_world(config: Config) -> None:
    world, parallel = world_size(config), config.parallel
    expert = parallel.ep * parallel.etp * parallel.pp
    if world % expert:
        legal = _nearest_divisor(world, expert)
        raise UserError(
            f"{world} training ranks do not hold whole copies of the experts",
            f"trainer.nnodes * trainer.devices_per_node = {world} must be a multiple of parallel.ep * etp * pp = {expert}",
            f"use an ep * etp * pp of {legal}, or {_nearest_multiple(world, expert)} ranks",
        )


def virtual_stages_need_a_pipeline(config: Config) -> None:
    parallel = config.parallel
    if parallel.vpp and parallel.pp == 1:
        raise UserError(
            f"parallel.vpp = {parallel.vpp} without a pipeline",
            "virtual stages interleave the stages of a pipeline, and parallel.pp is 1",
            "set parallel.vpp=0, or parallel.pp=2 or more",
        )
    if parallel.vpp == 1:
        raise UserError("parallel.vpp = 1", "one virtual stage a device interleaves nothing", "set parallel.vpp=0 (off) or 2 or more")


def sequence_parallel_needs_tensor_parallel(config: Config) -> None:
    if config.parallel.sp and config.parallel.tp == 1:
        raise UserError(
            "parallel.sp = true with parallel.tp = 1",
            "sequence parallelism splits over the tensor-parallel ranks, and there is only one",
            "leave parallel.sp unset (on when tp > 1), or set parallel.tp=2 or more",
        )


def batches_divide_over_data_parallel_ranks(config: Config) -> None:
    """Samples are what is dealt out, so the number of devices does not matter, only the number of model copies."""
    dp, n, whole = data_parallel_size(config), config.rollout.n, config.data.train_batch_size
    unit = dp // math.gcd(dp, n)  # the fewest prompts whose samples can be dealt out
    _dealt_out("data.train_batch_size", whole, n, dp, _nearest_multiple(whole, unit))
    if mini := config.batch.mini_batch_size:
        _dealt_out("batch.mini_batch_size", mini, n, dp, unit * _nearest_divisor(whole // unit, mini // unit))
    if config.warm_start.max_steps:
        rows = config.warm_start.batch_size
        _dealt_out("warm_start.batch_size", rows, 1, dp, _nearest_multiple(rows, dp))


def _dealt_out(key: str, prompts: int, n: int, dp: int, legal: int) -> None:
    if prompts * n % dp:
        raise UserError(
            f"{key} = {prompts} cannot be dealt out evenly",
            f"{prompts} prompts * {n} samples must be a multiple of the data-parallel size {dp} (ranks / (tp * pp * cp))",
            f"set {key}={legal}",
        )


def mini_batches_divide_the_batch(config: Config) -> None:
    whole, mini = config.data.train_batch_size, config.batch.mini_batch_size
    if mini and whole % mini:
        raise UserError(
            f"batch.mini_batch_size = {mini} does not divide data.train_batch_size = {whole}",
            "every prompt of a step takes part in exactly one optimizer step a pass",
            f"set batch.mini_batch_size={_nearest_divisor(whole, mini)}",
        )


def a_sequence_fits_its_places(config: Config) -> None:
    longest = config.data.max_prompt_length + config.data.max_response_length
    reason = f"data.max_prompt_length + data.max_response_length = {longest} tokens"
    if 0 < config.rollout.max_model_len < longest:
        raise UserError(
            f"rollout.max_model_len = {config.rollout.max_model_len} is too short", reason, f"set rollout.max_model_len={longest}, or 0"
        )
    room = config.batch.max_tokens_per_device * config.parallel.cp
    if config.batch.micro_batch_size == 0 and room < longest:
        needed = -(-longest // config.parallel.cp)
        raise UserError(
            f"batch.max_tokens_per_device = {config.batch.max_tokens_per_device} does not hold the longest sequence",
            f"{reason}, on {config.parallel.cp} context-parallel device(s)",
            f"set batch.max_tokens_per_device={needed} or more",
        )


def a_penalty_leaves_room_to_answer(config: Config) -> None:
    buffer, longest = config.reward.overlong_buffer, config.data.max_response_length
    if buffer > longest:
        raise UserError(
            f"reward.overlong_buffer = {buffer} is longer than a response",
            f"data.max_response_length = {longest}: every response would be punished",
            f"set reward.overlong_buffer={longest // 4}",
        )


def columns_come_in_pairs(config: Config) -> None:
    columns = config.data.columns
    if bool(columns.prompt) != bool(columns.answer) or ((columns.images or columns.source or columns.response) and not columns.prompt):
        raise UserError(
            "data.columns names some columns and not the prompt's and the answer's",
            "a layout is either known by its columns or named as a whole",
            "set data.columns.prompt and data.columns.answer, or none of data.columns",
        )
    if config.data.instruction and not columns.prompt:
        raise UserError(
            "data.instruction without data.columns",
            "rows of a known layout bring or get their own instruction",
            "set data.columns.prompt and data.columns.answer, or data.system_prompt instead",
        )


def vllm_takes_the_temperatures(config: Config) -> None:
    check_temperature("rollout.temperature", config.rollout.temperature, greedy=False)
    check_temperature("rollout.val_temperature", config.rollout.val_temperature, greedy=True)


def check_temperature(key: str, value: float, *, greedy: bool) -> None:
    """Raises UserError for a temperature that vLLM would change; `greedy`: 0 is fine."""
    low, high = VLLM_TEMPERATURES
    if not low <= value <= high and not (greedy and value == 0):
        raise UserError(
            f"{key} = {value}", f"vLLM samples at temperatures from {low} to {high}", f"set {key}={min(max(value, low), high):g}"
        )


def log_probs_are_comparable(config: Config) -> None:
    rollout, used = config.rollout, []
    if config.fidelity.max_logprob_abs_diff_mean:
        used.append("fidelity.max_logprob_abs_diff_mean")
    if config.algorithm.old_logprobs == "rollout":
        used.append("algorithm.old_logprobs = rollout")
    if used and (rollout.top_p < 1 or rollout.top_k > 0):
        raise UserError(
            f"rollout.top_p = {rollout.top_p}, rollout.top_k = {rollout.top_k} with {' and '.join(used)}",
            "a cut distribution gives the generator other log-probs than the trainer's whole one",
            "set rollout.top_p=1 rollout.top_k=0, or fidelity.max_logprob_abs_diff_mean=0 and algorithm.old_logprobs=trainer",
        )


def greedy_samples_differ_only_once(config: Config) -> None:
    if config.rollout.val_temperature == 0 and config.rollout.val_n > 1:
        raise UserError(
            f"rollout.val_n = {config.rollout.val_n} with rollout.val_temperature = 0",
            "greedy samples of one prompt are all the same",
            "set rollout.val_n=1, or a rollout.val_temperature above 0",
        )


def generators_fit_the_devices(config: Config) -> None:
    rollout, world = config.rollout, world_size(config)
    seats = rollout.tp * rollout.replicas
    if rollout.placement == "colocated" and config.device in ("gpu", "npu") and seats > world:
        raise UserError(
            f"rollout.replicas * rollout.tp = {seats} generator devices on {world} devices",
            "a colocated generator shares the trainer's devices, one generator rank a device",
            f"set rollout.replicas={max(1, world // rollout.tp)}" + (f" rollout.tp={world}" if rollout.tp > world else ""),
        )


def samples_ahead_need_their_own_devices(config: Config) -> None:
    if config.rollout.max_staleness and config.rollout.placement == "colocated":
        raise UserError(
            f"rollout.max_staleness = {config.rollout.max_staleness} with rollout.placement = colocated",
            "generating while training needs devices that the trainer does not use",
            "set rollout.placement=split, or rollout.max_staleness=0",
        )


def weights_travel_by_what_the_placement_allows(config: Config) -> None:
    transport, placement = config.sync.transport, config.rollout.placement
    if config.device not in ("gpu", "npu") or (transport, placement) not in {("device", "split"), ("collective", "colocated")}:
        return
    why = {
        "device": "a generator with devices of its own may be on another node, where no handle of device memory opens",
        "collective": "trainer and generator share each device, and a group of NCCL or HCCL has one process a device",
    }
    fix = {"device": "collective", "collective": "device"}[transport]
    raise UserError(
        f"sync.transport = {transport} with rollout.placement = {placement}", why[transport], f"set sync.transport={fix}, or shared_memory"
    )


def replayed_experts_stay_with_their_layer(config: Config) -> None:
    if config.rollout.router_replay and config.rollout.max_staleness:
        raise UserError(
            "rollout.router_replay with rollout.max_staleness = 1",
            "a checkpoint holds the batch that was made ahead, and would hold the experts of each of its tokens: gigabytes",
            "set rollout.max_staleness=0, or rollout.router_replay=false",
        )
    if config.rollout.router_replay and config.trainer.recompute == "selective":
        raise UserError(
            "rollout.router_replay with trainer.recompute = selective",
            "experts would be computed again apart from their layer, which brings the choices of its micro-batch",
            "set trainer.recompute=full or none",
        )


def conversations_are_made_when_they_are_asked_for(config: Config) -> None:
    if config.rollout.environment and config.rollout.max_staleness:
        raise UserError(
            f"rollout.environment = {config.rollout.environment} with rollout.max_staleness = 1",
            "a checkpoint holds the batch that was made ahead, and does not keep what an environment showed",
            "set rollout.max_staleness=0, or rollout.environment= (none)",
        )


def whole_experts_need_several_devices(config: Config) -> None:
    rollout = config.rollout
    if rollout.expert_parallel and (rollout.tp == 1 or config.device == "cpu"):
        one = rollout.tp == 1
        raise UserError(
            f"rollout.expert_parallel with {'rollout.tp = 1' if one else 'device = cpu'}",
            "there is one device to deal experts out to" if one else "vLLM's CPU kernel crashes when some experts are elsewhere",
            "set rollout.expert_parallel=false",
        )


def a_tensor_parallel_group_stays_on_a_node(config: Config) -> None:
    tp, trainer = config.parallel.tp, config.trainer
    if trainer.nnodes > 1 and trainer.devices_per_node % tp:
        raise UserError(
            f"parallel.tp = {tp} does not divide the {trainer.devices_per_node} devices of a node",
            "tensor parallel ranks talk in every layer, too often for the links between nodes",
            f"set parallel.tp={_nearest_divisor(trainer.devices_per_node, tp)}; a pipeline may span nodes",
        )


def a_generator_fits_on_a_node(config: Config) -> None:
    """Its workers share memory, and weights reach them through it."""
    rollout, per_node = config.rollout, config.trainer.devices_per_node
    if rollout.placement == "colocated" and per_node % rollout.tp:
        raise UserError(
            f"rollout.tp = {rollout.tp} does not divide the {per_node} devices of a node",
            "a generator never spans nodes, and shares each device with one training rank",
            f"set rollout.tp={_nearest_divisor(per_node, rollout.tp)}",
        )


def separate_generators_are_counted(config: Config) -> None:
    if config.rollout.placement == "split" and not config.rollout.replicas:
        raise UserError(
            "rollout.replicas = 0 with rollout.placement = split",
            "0 is as many generators as share the trainer's devices, and these have their own",
            "set rollout.replicas=1 or more",
        )


def profiled_steps_and_ranks_exist(config: Config) -> None:
    profile, world = config.trainer.profile, world_size(config)
    if wrong := [rank for rank in profile.ranks if not 0 <= rank < world]:
        raise UserError(
            f"trainer.profile.ranks names {wrong[0]}", f"the run has training ranks 0 to {world - 1}", "set trainer.profile.ranks=[0]"
        )
    if wrong := [step for step in profile.steps if step < 1]:
        raise UserError(f"trainer.profile.steps names {wrong[0]}", "the first step is 1", "set trainer.profile.steps=[2]")


def ports_differ(config: Config) -> None:
    cluster = config.cluster
    if cluster.master_port and cluster.master_port == cluster.dashboard_port:
        raise UserError(
            f"cluster.master_port and cluster.dashboard_port are both {cluster.master_port}",
            "two listeners cannot share a port",
            "choose another for one of them, or 0",
        )


RULES = (
    world_divides_into_model_copies,
    experts_divide_the_world,
    virtual_stages_need_a_pipeline,
    sequence_parallel_needs_tensor_parallel,
    mini_batches_divide_the_batch,
    batches_divide_over_data_parallel_ranks,
    a_sequence_fits_its_places,
    *ALGORITHM_RULES,
    a_penalty_leaves_room_to_answer,
    columns_come_in_pairs,
    vllm_takes_the_temperatures,
    log_probs_are_comparable,
    greedy_samples_differ_only_once,
    generators_fit_the_devices,
    a_tensor_parallel_group_stays_on_a_node,
    a_generator_fits_on_a_node,
    samples_ahead_need_their_own_devices,
    weights_travel_by_what_the_placement_allows,
    separate_generators_are_counted,
    replayed_experts_stay_with_their_layer,
    conversations_are_made_when_they_are_asked_for,
    whole_experts_need_several_devices,
    profiled_steps_and_ranks_exist,
    ports_differ,
)


def _nearest_multiple(number: int, of: int) -> int:
    """The multiple of `of`, at least once it, closest to `number`; of two the lower."""
    below = number // of * of
    return below if below and number - below <= below + of - number else below + of


def _nearest_divisor(number: int, to: int) -> int:
    """The divisor of `number` closest to `to`; of two the lower."""
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: (abs(d - to), d))
