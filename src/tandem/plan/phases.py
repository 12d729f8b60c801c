"""Who holds what in each phase of a step: bytes on a device of the busiest kind, and on the host of a node.

load -> rollout -> log-prob -> update -> publication. On GPU and NPU a colocated generator sleeps, all its memory freed, while the trainer
works; it wakes for a publication with its weights only. With `trainer.offload` the trainer's states are in host memory when not in use.
"""

from dataclasses import dataclass, field

from tandem.config.schema import Config
from tandem.plan.activations import Setting
from tandem.plan.batch import MicroBatch
from tandem.plan.generator import Generator
from tandem.plan.parameters import Parameter
from tandem.plan.peak import inference_peak, largest_slice, step_bytes, update_peak
from tandem.plan.states import GRAD_BYTES, States

PHASES = ("load", "rollout", "log-prob", "update", "publication")
NOTHING = States(0, 0, 0, 0)
DEVICE_RESERVE = 2 << 30  # context, kernels and buffers of the collective library: an allowance, not a count
TRAINER_PROCESS, GENERATOR_PROCESS, RUN_PROCESSES = 700 << 20, 1000 << 20, 900 << 20  # Python and its libraries, as seen on Linux


@dataclass
class Memory:
    """Named bytes; `total` is what must fit."""

    parts: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def add(self, **parts: int) -> "Memory":
        self.parts |= {name: size for name, size in parts.items() if size}
        return self


@dataclass(frozen=True)
class Rank:
    """A training rank as the phases need it."""

    stage: int
    states: States
    chunks: list[list[Parameter]]
    batches: list[MicroBatch]
    num_shards: int
    critic: States = NOTHING  # of the value model beside the policy, where there is one

    @property
    def parameters(self) -> list[Parameter]:
        return [parameter for chunk in self.chunks for parameter in chunk]


def device_phases(config: Config, setting: Setting, rank: Rank, generator: Generator) -> dict[str, Memory]:
    """By phase: on the device of one training rank, and of a generator where they share it. For devices with memory of their own."""
    shared = config.rollout.placement == "colocated"
    states, offload = rank.states, config.trainer.offload
    optimizer = 0 if config.optimizer.on_cpu else states.optimizer
    here = {"weights": states.weights, "gradients": states.gradients, "optimizer": optimizer}
    idle = {} if offload else here
    weights_only = {"weights": states.weights} if offload else here
    base = Memory({"reserve": DEVICE_RESERVE}).parts
    peak = update_peak(setting, rank.stage, rank.batches)
    working = max(peak.total, _step(config, setting, rank))
    reference = states.weights if config.algorithm.kl.coef > 0 else 0
    memory = {phase: Memory(dict(base)) for phase in PHASES}
    if config.sync.transport != "shared_memory":
        for phase in PHASES[1:]:
            memory[phase].add(own_bucket=config.sync.bucket_bytes)  # kept from one publication to the next
    for phase in PHASES[1:]:
        memory[phase].add(critic=critic_on_device(config, rank.critic))
    memory["load"].add(weights=states.weights, gradients=states.gradients, copy=load_copy(rank.parameters, setting.item))
    memory["rollout"].add(**idle)
    if shared:
        memory["rollout"].add(
            generator_weights=generator.weights, generator_working=generator.working, generator_cache=max(0, generator.cache)
        )
        memory["publication"].add(generator_weights=generator.weights, bucket=config.sync.bucket_bytes)
    scores = max(inference_peak(setting, rank.stage, batch) for batch in rank.batches)
    memory["log-prob"].add(**weights_only, reference=reference, activations=scores)
    memory["update"].add(**here, activations=peak.kept, logits=min(peak.logits, working - peak.kept))
    memory["update"].add(scratch=working - peak.kept - memory["update"].parts.get("logits", 0))
    memory["publication"].add(**weights_only, gather=gather_bytes(rank.parameters, setting))
    return memory


def generator_device(generator: Generator) -> Memory:
    """Of a device that only a generator uses."""
    return Memory({"reserve": DEVICE_RESERVE}).add(
        generator_weights=generator.weights, generator_working=generator.working, generator_cache=max(0, generator.cache)
    )


def host_memory(config: Config, setting: Setting, ranks: list[Rank], generator: Generator) -> dict[str, Memory]:
    """By phase: on the host of one node. `ranks`: the training ranks on it. On CPU the host is the device, and all is held at once."""
    num, on_cpu = len(ranks), setting.on_cpu
    total = {name: sum(getattr(rank.states, name) for rank in ranks) for name in ("weights", "gradients", "optimizer")}
    workers = -(-config.rollout.replicas * config.rollout.tp // config.trainer.nnodes)
    critics = sum(rank.critic.weights + rank.critic.gradients + rank.critic.optimizer for rank in ranks)
    processes = num * TRAINER_PROCESS + workers * GENERATOR_PROCESS + RUN_PROCESSES
    reference = total["weights"] if config.algorithm.kl.coef > 0 else 0
    buckets = min(num, config.parallel.pp * config.parallel.ep) * config.sync.bucket_bytes
    store = config.cluster.object_store_bytes
    memory = {phase: Memory({"processes": processes}).add(reference=reference, object_store=store) for phase in PHASES}
    del memory["load"].parts["processes"]
    memory["load"].add(processes=num * TRAINER_PROCESS + RUN_PROCESSES)
    if on_cpu or config.sync.transport == "shared_memory":
        memory["publication"].add(buckets=buckets)
    if on_cpu:
        copies = sum(load_copy(rank.parameters, setting.item) for rank in ranks)
        memory["load"].add(weights=total["weights"], gradients=total["gradients"], copy=copies)
        activations = {
            "log-prob": sum(max(inference_peak(setting, rank.stage, batch) for batch in rank.batches) for rank in ranks),
            "update": sum(max(update_peak(setting, rank.stage, rank.batches).total, _step(config, setting, rank)) for rank in ranks),
        }
        for phase in PHASES[1:]:
            memory[phase].add(**total, critic=critics, generators=workers * generator.total, activations=activations.get(phase, 0))
        memory["publication"].add(gather=sum(gather_bytes(rank.parameters, setting) for rank in ranks))
        return memory
    if config.optimizer.on_cpu:
        for phase in PHASES[1:]:
            memory[phase].add(optimizer=total["optimizer"])
        # one parameter at a time: its fp32 gradient comes, its weights go, in the model's dtype
        slices = sum(largest_slice(rank.chunks, rank.num_shards) for rank in ranks)
        memory["update"].add(step=slices * (GRAD_BYTES + setting.item))
    elif config.trainer.offload:
        for phase in ("rollout", "log-prob", "publication"):
            memory[phase].add(optimizer=total["optimizer"])
    for phase in PHASES[1:]:
        memory[phase].add(critic=sum(critic_on_host(config, rank.critic) for rank in ranks))
    if config.trainer.offload:
        memory["rollout"].add(weights=total["weights"])
    return memory


def critic_on_device(config: Config, states: States) -> int:
    """Beside the policy. With `trainer.offload` the two take turns, and the policy needs no less."""
    if config.trainer.offload:
        return 0
    return states.weights + states.gradients + (0 if config.critic.optimizer.on_cpu else states.optimizer)


def critic_on_host(config: Config, states: States) -> int:
    """Of a device with memory of its own: what waits in host memory for its turn, and an optimizer that stays there."""
    if config.trainer.offload:
        return states.weights + states.optimizer
    return states.optimizer if config.critic.optimizer.on_cpu else 0


def _step(config: Config, setting: Setting, rank: Rank) -> int:
    fused = setting.fused or config.optimizer.on_cpu
    return step_bytes(rank.chunks, rank.num_shards, on_cpu=setting.on_cpu, fused=fused)


def load_copy(parameters: list[Parameter], item: int) -> int:
    """Megatron copies the loaded weights into its buffers: those of experts are there twice at the end, those of the dense part before."""
    experts = sum(p.numel for p in parameters if p.expert)
    dense = sum(p.numel for p in parameters if not p.expert and not p.frozen)
    return item * max(experts, dense)


def gather_bytes(parameters: list[Parameter], setting: Setting) -> int:
    """The largest tensor of a publication, gathered from the ranks that share it and put together: both at once."""
    tp, etp = setting.layout.tp, setting.layout.etp
    whole = [p.numel * (etp if p.expert else tp) for p in parameters if (etp if p.expert else tp) > 1]
    return 2 * setting.item * max(whole, default=0)
