#!/usr/bin/env python3
"""A scheduling policy for Giveway in a process of its own: highest priority first.

It reads one question a line and answers each with one line; docs/OWN-POLICY.md
describes the fields. It needs Python's standard library only:

    giveway policy external --exec 'python3 priority.py'
"""

import json
import sys


def plan(question):
    """Grant the ready queues of the highest priority, and all idle queues."""
    queues = [q for q in question["queues"] if not q["paused"]]
    top = max((q["priority"] for q in queues if q["ready"]), default=None)
    return [
        {"queue": q["id"]}
        for q in queues
        if not q["ready"] or q["priority"] == top
    ]


for line in sys.stdin:
    question = json.loads(line)
    answer = {"answer": question["question"], "grants": plan(question)}
    print(json.dumps(answer), flush=True)
