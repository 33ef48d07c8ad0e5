# SPDX-License-Identifier: Apache-2.0
"""Gives hints to the daemon at GIVEWAY_SOCKET. The test that runs it checks what the daemon
reads."""

import os
import sys
import threading

import giveway


def each():
    giveway.priority(-3)
    giveway.deadline(0.004)
    giveway.laxity(0.005)
    giveway.work(0.006)
    giveway.slo(0.007)
    with giveway.idempotent():
        pass
    with giveway.request():
        giveway.expect(in_seconds=60)
    assert giveway.connected()


def threads():
    def many():
        for _ in range(100):
            with giveway.request():
                giveway.priority(1)

    all_threads = [threading.Thread(target=many) for _ in range(8)]
    for t in all_threads:
        t.start()
    for t in all_threads:
        t.join()


def fork():
    giveway.priority(1)
    number = giveway.begin()
    child = os.fork()
    if child == 0:
        os._exit(0 if giveway.priority(2) else 1)
    assert os.waitpid(child, 0)[1] == 0
    giveway.end(number)
    giveway.priority(3)


def listen():
    """Gives a hint for each line of input and prints whether a daemon got it."""
    giveway.priority(9)
    for _ in sys.stdin:
        print("connected" if giveway.laxity(1) else "no daemon", flush=True)


{"each": each, "threads": threads, "fork": fork, "listen": listen}[sys.argv[1]]()
if sys.argv[1] != "listen":
    print("ok", flush=True)
    sys.stdin.read()
