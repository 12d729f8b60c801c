"""A look at data files before a run: which rows cannot be used, how long prompts are, what would be left out or cut."""

from dataclasses import dataclass, field

from tandem.config.schema import DataConfig
from tandem.data.bad_rows import BadRow, BadRows
from tandem.data.prompts import PromptBuilder
from tandem.data.rows import read_rows
from tandem.data.types import Row
from tandem.progress import Progress, unseen


class CollectedRows(BadRows):
    """Keeps every complaint instead of ending at the first."""

    def __init__(self) -> None:
        super().__init__(skip=True)
        self.met: list[BadRow] = []

    def meet(self, error: BadRow) -> None:
        self.counts[error.kind] += 1
        self.met.append(error)

    @property
    def summary(self) -> str:
        """The first complaint, too: there is no log here."""
        first = " ".join(str(self.met[0]).split()) if self.met else ""
        return f"{sum(self.counts.values())} bad rows; the first: {first}" if first else ""


@dataclass(frozen=True)
class SeenRow:
    row: Row
    num_tokens: int | None = None  # of the whole prompt; None without a model
    rendered: str = ""


@dataclass(frozen=True)
class Look:
    rows: list[SeenRow]
    bad: list[BadRow]
    limit: int  # data.max_prompt_length
    filters: bool  # data.filter_overlong: longer rows are left out; else `truncation` says what happens to them
    truncation: str
    overlong: list[SeenRow] = field(default_factory=list)


def look(files: list[str], data: DataConfig, builder: PromptBuilder | None, on_progress: Progress = unseen) -> Look:
    """Every row of the files, good or bad.

    Args:
        builder: makes prompts of rows; None: lengths stay unknown.
        on_progress: (rows done, rows in all), called after each.

    Raises:
        UserError: a file is missing or unreadable, or all its rows are bad.
    """
    bad = CollectedRows()
    rows, seen = read_rows(files, data, bad), list[SeenRow]()
    for done, row in enumerate(rows, 1):
        try:
            prompt = builder.build(row) if builder else None
        except BadRow as error:
            bad.meet(error)
        else:
            seen.append(SeenRow(row, len(prompt.token_ids), prompt.rendered) if prompt else SeenRow(row))
        on_progress(done, len(rows))
    limit = data.max_prompt_length
    overlong = [one for one in seen if one.num_tokens is not None and one.num_tokens > limit]
    return Look(seen, bad.met, limit, data.filter_overlong, data.truncation, overlong)
