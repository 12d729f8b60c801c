"""The prompts of some rows: measured once, in parallel and remembered on disk; made when they are asked for.

A processed image is several MB in fp32, so a data set of them does not fit into memory. What was used last is kept, within
`data.keep_bytes`.
"""

import multiprocessing
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple, overload

from tandem.config.schema import DataConfig
from tandem.data.bad_rows import BadRow, BadRows
from tandem.data.lengths import LengthCache
from tandem.data.prompts import PromptBuilder
from tandem.data.types import Prompt, Row
from tandem.errors import UserError
from tandem.progress import Progress


class PromptSet(Sequence[Prompt]):
    """Prompts no longer than data.max_prompt_length, in the rows' order.

    `lengths`: tokens of each; `num_overlong`: how many rows were left out for theirs.
    """

    def __init__(self, rows: list[Row], lengths: list[int], builder: PromptBuilder, num_overlong: int):
        assert len(rows) == len(lengths)
        self.rows, self.lengths, self.num_overlong = rows, lengths, num_overlong
        self._builder, self._kept, self._kept_bytes = builder, OrderedDict[int, Prompt](), 0
        self._lock = threading.Lock()  # an engine that is replaced gets its canary while another thread draws a batch

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # a negative one counts from the end, one too large is an IndexError
        with self._lock:
            if index not in self._kept:
                self.keep(index, self._builder.shorten(self._builder.build(self.rows[index])))
            self._kept.move_to_end(index)
            return self._kept[index]

    def keep(self, index: int, prompt: Prompt) -> None:
        """Remember it, and forget those unused for longest when there are too many; never this one."""
        self._kept[index] = prompt
        self._kept_bytes += prompt.num_bytes
        while self._kept_bytes > self._builder.data.keep_bytes and len(self._kept) > 1:
            _, forgotten = self._kept.popitem(last=False)
            self._kept_bytes -= forgotten.num_bytes


def build_prompts(
    rows: list[Row],
    builder: PromptBuilder,
    on_progress: Progress | None = None,
    *,
    bad: BadRows | None = None,
    cache: Path | None = None,
) -> PromptSet:
    """Every row as a prompt no longer than data.max_prompt_length. Only length leaves a row out, or a fault as `bad` decides.

    Args:
        on_progress: called after each row, left out or not.
        bad: what happens to a row that cannot be processed; None: it raises.
        cache: folder where lengths are remembered; None: nowhere.

    Raises:
        UserError: no prompt is left, or one is too long and cannot be cut.
    """
    bad, limit, filters = bad or BadRows(), builder.data.max_prompt_length, builder.data.filter_overlong
    kept: list[tuple[Row, int, Prompt | None]] = []
    num_overlong = 0
    for done, (row, measured) in enumerate(_measured(rows, builder, cache), start=1):
        if measured.error is not None:
            bad.meet(measured.error)
        elif measured.length > limit and filters:
            num_overlong += 1
        else:
            prompt = measured.prompt
            if measured.length > limit:  # now, not in the middle of a run, it shows whether it can be cut
                prompt = builder.shorten(prompt or builder.build(row))
            kept.append((row, min(measured.length, limit), prompt))
        if on_progress:
            on_progress(done, len(rows))
    if rows and not kept:
        why = bad.summary or f"all {len(rows)} rows are longer than {limit} tokens"
        raise UserError("no prompt is left", why, "mend the rows" if bad.counts else "raise data.max_prompt_length")
    made = PromptSet([row for row, _, _ in kept], [length for _, length, _ in kept], builder, num_overlong)
    for index, (_, _, prompt) in enumerate(kept):
        if prompt is not None:
            made.keep(index, prompt)
    return made


class _Measured(NamedTuple):
    length: int
    error: BadRow | None = None
    prompt: Prompt | None = None


def _measured(rows: list[Row], builder: PromptBuilder, cache: Path | None) -> Iterator[tuple[Row, _Measured]]:
    """Each row with its prompt's length, in order: from the cache, from other processes, or as this one processes it."""
    lengths = LengthCache(cache, builder.fingerprint) if cache else None
    known = [lengths.get(row) if lengths else None for row in rows]
    fresh = _in_parallel([row for row, length in zip(rows, known) if length is None], builder)
    kept_bytes = 0
    for row, length in zip(rows, known):
        if length is not None:
            yield row, _Measured(length)
            continue
        measured = next(fresh)
        if lengths and not measured.error:
            lengths.put(row, measured.length)
        if measured.prompt is not None:
            kept_bytes += measured.prompt.num_bytes
            if kept_bytes > builder.data.keep_bytes:
                measured = measured._replace(prompt=None)
        yield row, measured
    if lengths:
        lengths.write()


def _in_parallel(rows: list[Row], builder: PromptBuilder) -> Iterator[_Measured]:
    num_workers = min(builder.data.num_workers, len(rows))
    if num_workers < 2:
        yield from (_measure(row, builder) for row in rows)
        return
    with ProcessPoolExecutor(
        num_workers, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(builder.model_path, builder.data)
    ) as pool:
        yield from pool.map(_measure_there, rows, chunksize=4)


_builder: PromptBuilder | None = None  # of a worker process


def _begin(model_path: str, data: DataConfig) -> None:
    global _builder
    _builder = PromptBuilder(model_path, data)


def _measure_there(row: Row) -> _Measured:
    assert _builder is not None
    return _measure(row, _builder)._replace(prompt=None)  # its pixels would take longer to send than to make


def _measure(row: Row, builder: PromptBuilder) -> _Measured:
    try:
        prompt = builder.build(row)
    except BadRow as error:
        return _Measured(0, error)
    return _Measured(len(prompt.token_ids), None, prompt)
