"""What happens to a row that cannot be used: it ends the run, or is left out and counted."""

import logging
from collections import Counter

from tandem.errors import UserError

log = logging.getLogger(__name__)


class BadRow(UserError):
    """One row is at fault. `kind` is a word for counting: `prompt`, `answer`, `image`, `marks`, `video`, `json`, `type`, `text`."""

    def __init__(self, what: str, why: str, fix: str, kind: str = "row"):
        super().__init__(what, why, fix)
        self.args = (what, why, fix, kind)  # all of them: the error crosses process borders by pickle
        self.kind = kind


class BadRows:
    """Args: skip: leave bad rows out (`data.on_bad_row=skip`) instead of raising the first."""

    def __init__(self, skip: bool = False):
        self.skip = skip
        self.counts: Counter[str] = Counter()

    def meet(self, error: BadRow) -> None:
        """Raises it, or notes it: its whole message goes to the log."""
        if not self.skip:
            raise error
        self.counts[error.kind] += 1
        log.warning("left out: %s", " ".join(str(error).split()))

    @property
    def summary(self) -> str:
        """`3 bad rows left out (image 2, answer 1)`; empty when there is none."""
        if not self.counts:
            return ""
        total, kinds = self.counts.total(), ", ".join(f"{kind} {count}" for kind, count in self.counts.most_common())
        return f"{total} bad row{'s' if total > 1 else ''} left out ({kinds}); the log says why"
