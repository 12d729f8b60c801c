"""The plan of a run: is its layout legal, what does each rank hold in each phase, what does a step compute and send, and does it fit."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from tandem.config.checks import has_critic
from tandem.config.schema import Config
from tandem.errors import UserError
from tandem.plan.activations import Setting
from tandem.plan.batch import MicroBatch, fullest_micro_batch, num_micro_batches
from tandem.plan.flops import Flops, batch_flops
from tandem.plan.generator import Generator, generator, model_len
from tandem.plan.layout import Layout
from tandem.plan.legality import broken_rules
from tandem.plan.parameters import Parameter, stage_parameters
from tandem.plan.phases import NOTHING, Memory, Rank, device_phases, generator_device, host_memory
from tandem.plan.pipeline import bubble
from tandem.plan.shapes import Shapes, model_config, shapes_of
from tandem.plan.states import ITEM_BYTES, States, worst_states
from tandem.plan.traffic import Traffic, publication_traffic, step_traffic


@dataclass(frozen=True)
class Machine:
    """What a run has; 0: not known, and not compared."""

    device_bytes: int = 0  # memory of a device; on CPU there is none apart from the host's
    host_bytes: int = 0  # of a node
    peak_flops: float = 0.0  # of a device, a second


@dataclass(frozen=True)
class Check:
    """One comparison of bytes."""

    place: str  # device, generator device, host
    phase: str
    needed: int
    available: int
    why: str = ""  # what is needed, where it is not the phase's total

    @property
    def fits(self) -> bool:
        return self.needed <= self.available


@dataclass(frozen=True)
class Stage:
    """The training ranks of one pipeline stage, by the one that holds most."""

    rank: Rank
    layers: list[range]
    num_ranks: int
    phases: dict[str, Memory]  # on its device; empty on CPU


@dataclass(frozen=True)
class Compute:
    """Of one step on whole batches of the longest sequences."""

    flops: float  # forward and backward of all samples, what MFU counts
    done: float  # with what is computed again, and the log-probs before the update
    bubble: float  # share of the update in which a stage waits
    mfu_ceiling: float  # of the update, were every operation at peak
    seconds: float | None  # of log-probs and update at peak on all devices, None when the peak is not known


@dataclass(frozen=True)
class Plan:
    config: Config
    machine: Machine
    shapes: Shapes
    layout: Layout
    batch: MicroBatch
    num_batches: int
    stages: list[Stage]
    generator: Generator
    host: dict[str, Memory]
    compute: Compute
    traffic: list[Traffic]
    checks: list[Check]

    @property
    def fits(self) -> bool | None:
        """None when there is nothing to compare with."""
        return all(check.fits for check in self.checks) if self.checks else None

    def busiest(self, phase: str) -> Stage:
        return max(self.stages, key=lambda stage: stage.phases[phase].total if stage.phases else stage.rank.states.weights)


def legal_shapes(config: Config) -> tuple[Shapes, list[UserError]]:
    """The model's sizes and every rule that the layout breaks. Raises UserError when the model is not known."""
    model = model_config(config.model, config.prepare)
    return shapes_of(model), broken_rules(config, model)


def make_plan(config: Config, shapes: Shapes, machine: Machine) -> Plan:
    """Args: config: with a legal layout."""
    layout = Layout.of(config)
    setting = Setting.of(config, shapes, layout)
    batch, count = fullest_micro_batch(config), num_micro_batches(config, layout.dp)
    flying = [batch] * min(count, 2 * layout.pp * layout.vpp)  # all alike: more would only repeat
    made = generator(config, shapes, machine.host_bytes if setting.on_cpu else machine.device_bytes)
    stages = [_stage(config, setting, stage, flying, made) for stage in range(layout.pp)]
    host = host_memory(config, setting, _ranks_of_a_node(layout, stages), made)
    compute, traffic = _speed(config, setting, machine, stages[0].rank.parameters)
    return Plan(
        config, machine, shapes, layout, batch, count, stages, made, host, compute, traffic, _checks(config, machine, stages, made, host)
    )


def speed(config: Config, shapes: Shapes, machine: Machine) -> tuple[Compute, list[Traffic]]:
    """What a step computes and sends, without what it holds: a small part of a plan's work."""
    setting = Setting.of(config, shapes, Layout.of(config))
    return _speed(config, setting, machine, [parameter for chunk in _chunks(config, setting, 0) for parameter in chunk])


def _speed(config: Config, setting: Setting, machine: Machine, parameters: list[Parameter]) -> tuple[Compute, list[Traffic]]:
    """Args: parameters: of a rank of the first stage."""
    batch, count = fullest_micro_batch(config), num_micro_batches(config, setting.layout.dp)
    return _compute(config, setting, machine, batch, count), _traffic(config, setting, parameters, batch, count)


def _chunks(config: Config, setting: Setting, stage: int) -> list[list[Parameter]]:
    model = config.model
    return stage_parameters(setting.shapes, setting.layout, stage, freeze_vision=model.freeze_vision, vision_tp=config.parallel.vision_tp)


def _stage(config: Config, setting: Setting, stage: int, batches: list[MicroBatch], made: Generator) -> Stage:
    layout, shapes = setting.layout, setting.shapes
    chunks = _chunks(config, setting, stage)
    states: States = worst_states(chunks, config, layout)
    rank = Rank(stage, states, chunks, batches, layout.dp * layout.cp, _critic(config, setting, stage))
    phases = {} if setting.on_cpu else device_phases(config, setting, rank, made)
    return Stage(rank, layout.chunks(stage, shapes.num_layers), layout.world // layout.pp, phases)


def _critic(config: Config, setting: Setting, stage: int) -> States:
    if not has_critic(config):
        return NOTHING
    vision = {"freeze_vision": config.model.freeze_vision, "vision_tp": config.parallel.vision_tp}
    chunks = stage_parameters(setting.shapes, setting.layout, stage, critic=True, **vision)
    return worst_states(chunks, config.model_copy(update={"optimizer": config.critic.optimizer}), setting.layout)


def _ranks_of_a_node(layout: Layout, stages: list[Stage]) -> list[Rank]:
    """Those of the node that holds most: Megatron fills node after node, stage after stage."""
    per_node, of_stage = layout.devices_per_node, layout.world // layout.pp
    nodes = [[stages[rank // of_stage].rank for rank in range(at, at + per_node)] for at in range(0, layout.world, per_node)]
    return max(nodes, key=lambda ranks: sum(rank.states.weights + rank.states.optimizer for rank in ranks))


def _compute(config: Config, setting: Setting, machine: Machine, batch: MicroBatch, count: int) -> Compute:
    layout = setting.layout
    passes = config.batch.num_epochs * -(-config.data.train_batch_size // (config.batch.mini_batch_size or config.data.train_batch_size))
    of_batch: Flops = batch_flops(setting.shapes, batch)
    updates = passes * count * layout.dp
    frozen = config.model.freeze_vision
    learning = [of_batch, of_batch.without_head()] if has_critic(config) else [of_batch]
    useful = updates * sum(model.useful(freeze_vision=frozen) for model in learning)
    update = updates * sum(model.done(config.trainer.recompute, freeze_vision=frozen) for model in learning)
    scoring = sum(model.forward for model in learning) + of_batch.forward * (config.algorithm.kl.coef > 0)
    scored = updates / config.batch.num_epochs * scoring
    idle = bubble(layout, count)
    seconds = (update + scored) / (1 - idle) / layout.world / machine.peak_flops if machine.peak_flops else None
    return Compute(useful, update + scored, idle, useful / update * (1 - idle), seconds)


def _traffic(config: Config, setting: Setting, parameters: list[Parameter], batch: MicroBatch, count: int) -> list[Traffic]:
    experts = sum(p.numel for p in parameters if p.expert)
    dense = sum(p.numel for p in parameters if not p.expert and not p.frozen)
    whole = ITEM_BYTES[config.model.dtype] * model_size(setting.shapes)
    nodes = config.trainer.nnodes
    generator_nodes = min(nodes, -(-config.rollout.replicas * config.rollout.tp // config.trainer.devices_per_node))
    return [*step_traffic(setting, batch, count, dense, experts), publication_traffic(whole, generator_nodes, nodes)]


@cache
def model_size(shapes: Shapes) -> int:
    """Parameters of the whole model."""
    one = Layout(1, 1, tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1)
    return sum(parameter.numel for chunk in stage_parameters(shapes, one, 0) for parameter in chunk)


def _checks(config: Config, machine: Machine, stages: list[Stage], made: Generator, host: dict[str, Memory]) -> list[Check]:
    found = []
    if machine.device_bytes and stages[0].phases:
        for phase in stages[0].phases:
            found.append(Check("device", phase, max(stage.phases[phase].total for stage in stages), machine.device_bytes))
        if config.rollout.placement == "split":
            found.append(Check("generator device", "rollout", generator_device(made).total, machine.device_bytes))
        found.append(_cache_check(config, made))
    if machine.host_bytes:
        found += [Check("host", phase, memory.total, machine.host_bytes) for phase, memory in host.items()]
    return found


def _cache_check(config: Config, made: Generator) -> Check:
    """vLLM refuses to start when its cache does not hold one sequence of the greatest length."""
    needed = made.weights + made.working + made.of_token * model_len(config) + made.of_sequence
    return Check("device", "rollout", needed, made.weights + made.working + made.cache, "generator with a cache for one longest sequence")


def as_machine(config: Config, device_bytes: int, host_bytes: int, peak_flops: float = 0.0) -> Machine:
    """The settings' figures before those given."""
    trainer = config.trainer
    return Machine(
        trainer.device_memory_bytes or device_bytes, trainer.host_memory_bytes or host_bytes, trainer.device_peak_flops or peak_flops
    )


def with_devices(config: Config, devices: int) -> Config:
    """The same run on so many training devices, with generators in proportion. Raises UserError when they are not whole nodes."""
    per_node = min(config.trainer.devices_per_node, devices)
    if devices % per_node:
        raise UserError(
            f"{devices} devices are not whole nodes", f"trainer.devices_per_node = {per_node}", "give a multiple, or set that key"
        )
    replicas = max(1, config.rollout.replicas * devices // (config.trainer.nnodes * config.trainer.devices_per_node))
    settings = {"trainer.nnodes": devices // per_node, "trainer.devices_per_node": per_node, "rollout.replicas": replicas}
    return changed(config, settings)


def changed(config: Config, settings: dict[str, Any]) -> Config:
    """A copy with some settings, by dotted key of two parts, replaced; not validated."""
    for key, value in settings.items():
        section, _, name = key.partition(".")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={name: value})})
    return config
