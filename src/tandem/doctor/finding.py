"""One line of the doctor's table."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "fault"]


@dataclass(frozen=True)
class Finding:
    """`fault`: no run can start, or it would end badly; `note`: worth knowing."""

    component: str
    found: str
    wanted: str
    state: State = "ok"
    why: str = ""
    fix: str = ""
