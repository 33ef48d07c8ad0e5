#!/usr/bin/env python3
"""A policy for Giveway that lives outside it: highest priority first.

It reads one question a line and answers each with one line; what the fields
mean is in docs/POLICIES.md. It needs nothing but Python's standard library:

    priority.py < questions > answers
"""

import json
import sys


def plan(question):
    """Run the ready queues of the highest priority, and all that are idle."""
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
