"""Processes that inherited a mark in their environment, wherever they hang in the process tree."""

import psutil

from tandem.actors.janitor import processes_of

MARK = "TANDEM_TEST_MARK"


def marked(mark: str) -> list[psutil.Process]:
    return processes_of(mark, MARK)


def command_of(process: psutil.Process) -> str:
    """Its command line; empty when it has ended, if only as a zombie that nobody has waited for."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
