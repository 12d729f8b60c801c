"""Which micro-batches a pipeline stage has in flight: forwards done, backwards not yet, in Megatron-Core's 1F1B and interleaved orders."""

from collections.abc import Iterator

from tandem.plan.layout import Layout

Flight = tuple[int, int]  # (model chunk of the stage, micro-batch)


def moments(layout: Layout, stage: int, num_batches: int) -> Iterator[tuple[frozenset[Flight], Flight]]:
    """For each backward pass: what is in flight, and whose backward comes next."""
    total = num_batches * layout.vpp
    behind = layout.pp - stage - 1
    warm_up = min(total, behind if layout.vpp == 1 else 2 * behind + (layout.vpp - 1) * layout.pp)
    flying: set[Flight] = {_forward(layout, index) for index in range(warm_up)}
    for index in range(total):
        if index + warm_up < total:
            flying.add(_forward(layout, index + warm_up))
        chunk, batch = _forward(layout, index)
        done = (layout.vpp - 1 - chunk, batch)
        yield frozenset(flying), done
        flying.remove(done)


def _forward(layout: Layout, index: int) -> Flight:
    group, place = divmod(index, layout.pp * layout.vpp)
    return place // layout.pp, group * layout.pp + place % layout.pp if layout.vpp > 1 else index


def bubble(layout: Layout, num_batches: int) -> float:
    """Share of the time of a step in which a stage waits for others. Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2."""
    idle = (layout.pp - 1) / layout.vpp
    return idle / (num_batches + idle)
