"""The process that forks workers: `python -m tandem.rewards.starter PARENT_PID SOCKET MEMORY_BYTES NAME...`.

It imports once what our graders need, sympy above all, then waits on the socket for pairs of descriptors: a worker's requests and replies.
It ends with its parent, and its workers with it. A user's own modules are imported by each worker: threads they start would not outlive a
fork.
"""

import gc
import os
import signal
import socket
import sys

from tandem.lifetime import die_with_parent
from tandem.rewards.graders import load
from tandem.rewards.types import Item
from tandem.rewards.worker import serve

WARM = {"geo3k": "\\boxed{2x}", "math": "\\boxed{2x}", "numeric": "\\boxed{2}"}  # the first call is slow: it fills sympy's caches


def main(parent: int, descriptor: int, memory_limit_bytes: int, names: list[str]) -> None:
    die_with_parent(parent)  # also in the middle of an item; `pool.py` starts this from the thread that grades
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    for name in names:
        if (short := name.partition(":")[0]) in WARM:
            load(name)([Item(WARM[short], WARM[short][7:-1])])
    gc.freeze()  # a collection in a worker would copy every page it looks at
    with socket.socket(fileno=descriptor) as requests:
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, 2)
            if not message:
                return
            starter = os.getpid()
            if os.fork() == 0:
                requests.close()
                die_with_parent(starter)
                serve(descriptors[0], descriptors[1], names, memory_limit_bytes)
                os._exit(0)
            for each in descriptors:
                os.close(each)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
