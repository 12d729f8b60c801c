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
