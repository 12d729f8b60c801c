"""Processes that inherited a mark in their environment, wherever they hang in the process tree."""

import psutil

MARK = "TANDEM_TEST_MARK"


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def command_of(process: psutil.Process) -> str:
    """Its command line; empty when it has ended, if only as a zombie that nobody has waited for."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
