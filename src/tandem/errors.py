"""The two kinds of failure a person meets. Everything else that escapes is a bug and keeps its traceback in the log."""

from pathlib import Path


class UserError(ValueError):
    """The input or the environment is at fault: one message to the terminal, exit code 2.

    Args:
        what: what is wrong, naming the file, key or value.
        why: why it cannot work.
        fix: what to do about it.
    """

    exit_code = 2

    def __init__(self, what: str, why: str, fix: str):
        super().__init__(what, why, fix)  # all three as args: the error crosses process borders by pickle
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  fix: {self.fix}"


class RunError(RuntimeError):
    """A run that started well could not go on: one message to the terminal, exit code 1. Same three parts as `UserError`."""

    exit_code = 1

    def __init__(self, what: str, why: str, fix: str):
        super().__init__(what, why, fix)
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  fix: {self.fix}"


def cannot_write(target: Path, error: OSError, what: str = "export") -> RunError:
    """Of a file or folder of the run."""
    return RunError(f"the {what} in {target} could not be written", str(error), "make room on its disk, or set another run_dir")
