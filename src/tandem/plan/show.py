"""A plan for the terminal: rich tables."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tandem.errors import UserError
from tandem.plan.advice import Change, as_overrides
from tandem.plan.phases import Memory
from tandem.plan.plan import Plan
from tandem.plan.search import Candidate


def size(num_bytes: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(num_bytes) >= scale / 2:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1024:.1f} KiB"


def show_refusal(broken: list[UserError]) -> RenderableType:
    table = Table(title=f"{len(broken)} rule(s) broken: no run can start", title_justify="left")
    for column in ("rule", "why", "fix"):
        table.add_column(column, overflow="fold")  # a setting to type is never cut
    for error in broken:
        table.add_row(error.what, error.why, error.fix)
    return table


def show_plan(plan: Plan, change: Change | None) -> RenderableType:
    return Group(*_parts(plan, change))


def _parts(plan: Plan, change: Change | None) -> Iterator[RenderableType]:
    p, made = plan.layout, plan.generator
    yield Text(
        f"{plan.config.recipe}: {p.world} ranks on {plan.config.device}, tp {p.tp} pp {p.pp} cp {p.cp} ep {p.ep} etp {p.etp}, "
        f"data parallel {p.dp}, experts' {p.expert_dp}; {plan.num_batches} micro-batches of {plan.batch.num_tokens} tokens at most"
    )
    if plan.stages[0].phases:
        yield _phases(
            "bytes on a device, the busiest stage's", {phase: plan.busiest(phase).phases[phase] for phase in plan.stages[0].phases}
        )
    yield _phases("bytes on the host of a node", plan.host)
    if len(plan.stages) > 1:
        yield _stages(plan)
    length = plan.config.rollout.max_model_len or plan.config.data.max_prompt_length + plan.config.data.max_response_length
    yield Text(
        f"generator: {size(made.weights)} of weights a device, cache for {made.num_sequences(length)} sequences of {length} tokens "
        f"({size(made.of_token)} a token, {size(made.of_sequence)} a sequence)"
    )
    yield _traffic(plan)
    compute = plan.compute
    seconds = f", {compute.seconds:.1f} s a step at the devices' peak" if compute.seconds is not None else ""
    yield Text(
        f"compute: {compute.flops:.3g} useful operations a step, {compute.done:.3g} done; bubble {compute.bubble:.1%}, "
        f"MFU of the update at most {compute.mfu_ceiling:.1%}{seconds}"
    )
    yield from _verdict(plan, change)


def _phases(title: str, phases: dict[str, Memory]) -> Table:
    names = list(dict.fromkeys(name for memory in phases.values() for name in memory.parts))
    table = Table("", title=title, title_justify="left")
    for phase in phases:
        table.add_column(phase, justify="right")
    for name in names:
        table.add_row(name.replace("_", " "), *(size(memory.parts[name]) if name in memory.parts else "" for memory in phases.values()))
    table.add_section()
    table.add_row("total", *(size(memory.total) for memory in phases.values()))
    return table


def _stages(plan: Plan) -> Table:
    table = Table(
        "stage", "layers", "ranks", "parameters", "weights", "gradients", "optimizer", title="training ranks", title_justify="left"
    )
    for stage in plan.stages:
        states, layers = stage.rank.states, ", ".join(f"{part.start}-{part.stop - 1}" for part in stage.layers)
        sizes = (size(x) for x in (states.weights, states.gradients, states.optimizer))
        table.add_row(str(stage.rank.stage), layers, str(stage.num_ranks), f"{states.num_parameters / 1e6:,.0f} M", *sizes)
    return table


def _traffic(plan: Plan) -> Table:
    table = Table(
        "group",
        "ranks",
        "in the node",
        "to other nodes",
        title="sent by a rank in one update; by all in a publication",
        title_justify="left",
    )
    for part in plan.traffic:
        if part.num_bytes:
            table.add_row(part.group, str(part.size), size(part.num_bytes - part.off_node), size(part.off_node))
    return table


def _verdict(plan: Plan, change: Change | None) -> Iterator[Text]:
    if plan.fits is None:
        yield Text("not compared with the devices' memory: give --memory, or set trainer.device_memory_bytes")
    elif plan.fits:
        tightest = max(plan.checks, key=lambda check: check.needed / check.available)
        yield Text(f"it fits: tightest is {tightest.place}, {tightest.phase}: {size(tightest.needed)} of {size(tightest.available)}")
    else:
        for check in plan.checks:
            if not check.fits:
                what = f" ({check.why})" if check.why else ""
                yield Text(f"does not fit: {check.place}, {check.phase}{what}: {size(check.needed)} of {size(check.available)}")
        yield Text(f"smallest change that makes it fit: {as_overrides(change)}" if change else "no change that is known here makes it fit")


def show_search(found: list[Candidate]) -> RenderableType:
    table = Table("layout", "fits", "device", "seconds", "compute", "bubble", "sending", title="best legal layouts", title_justify="left")
    for one in found:
        most = max((memory.total for stage in one.plan.stages for memory in stage.phases.values()), default=0)
        layout = " ".join(f"{key} {value}" for key, value in (one.layout | {"dp": one.plan.layout.dp}).items() if key != "vpp")
        fits = {True: "yes", False: "no", None: "?"}[one.plan.fits]
        table.add_row(layout, fits, size(most), *(f"{x:.0f}" for x in (one.seconds, one.compute_s, one.bubble_s, one.traffic_s)))
    return Group(table, Text("seconds of a step at usual speeds, to compare layouts; those that fit first, then the fastest"))
