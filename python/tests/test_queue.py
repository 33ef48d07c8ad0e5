# SPDX-License-Identifier: Apache-2.0
"""Tests of giveway.queue. GIVEWAY_LIBRARY names the library."""

import errno
import gc
import threading
import time
import unittest
import weakref

import giveway
import giveway.queue
from giveway.queue import Queue


def high_first(high, low):
    """Whether all commands of the high queue run before those of the low one."""
    order = []
    high.suspend(), low.suspend()
    for _ in range(5):
        low.submit(lambda: order.append("low"))
        high.submit(lambda: order.append("high"))
    high.resume(), low.resume()
    high.wait(), low.wait()
    return order == ["high"] * 5 + ["low"] * 5


class TestQueue(unittest.TestCase):
    def test_runs_in_order(self):
        with Queue("a name that is too long for a thread") as q:
            ran = []
            numbers = [q.submit(lambda i=i: ran.append(i)) for i in range(100)]
            q.wait(numbers[50])
            self.assertGreaterEqual(len(ran), 51)
            q.wait()
            self.assertEqual((ran, numbers), (list(range(100)), list(range(1, 101))))
            self.assertEqual((q.counts(), q.state), ((100, 100, 100, 0), "idle"))
        q.close()

    def test_suspend_and_drop(self):
        class Function:
            def __call__(self):
                raise AssertionError("it was dropped")

        with Queue() as q:
            q.suspend()
            f = Function()
            gone = weakref.ref(f)
            q.submit(f)
            del f
            self.assertEqual((q.state, q.drop(), q.drop()), ("suspended", 1, 0))
            gc.collect()
            self.assertIsNone(gone())
            q.resume()
            q.wait()
            self.assertEqual(q.counts().dropped, 1)

    def test_drop_while_commands_begin(self):
        with Queue() as q:
            for _ in range(200):
                for _ in range(20):
                    q.submit(lambda: None)
                q.drop()
            q.wait()
            c = q.counts()
            self.assertEqual((c.launched + c.dropped, q._functions), (c.submitted, {}))

    def test_forgotten_queue_runs_its_commands(self):
        go, ran = threading.Event(), threading.Event()
        q = Queue()
        q.submit(go.wait)
        q.submit(ran.set)
        del q
        gc.collect()
        go.set()
        self.assertTrue(ran.wait(60))
        for q in list(giveway.queue._open):
            q.close()
        self.assertFalse(giveway.queue._open)

    def test_close_in_a_command(self):
        failed = []

        def close():
            try:
                q.close()
            except OSError as e:
                failed.append(e.errno)

        with Queue() as q:
            q.wait(q.submit(close))
            self.assertEqual((failed, q.counts().completed), ([errno.EDEADLK], 1))

    def test_commands(self):
        with Queue() as q:
            begun, go = threading.Event(), threading.Event()
            before = time.monotonic()
            q.submit(lambda: (begun.set(), go.wait()), kind="kernel")
            begun.wait()
            n = q.submit(lambda: None, kind="copy", later=True)
            running, waiting = q.commands()
            self.assertEqual((running.kind, running.begun, waiting.kind, waiting.begun), ("kernel", True, "copy", False))
            self.assertTrue(before <= running.submitted <= waiting.submitted <= time.monotonic())
            go.set()
            while q.counts().launched < 2:
                time.sleep(0.001)
            self.assertEqual(q.state, "ready")
            q.done(n)
            q.wait()
            with self.assertRaises(OSError) as raised:
                q.done(n)
            self.assertEqual(raised.exception.errno, errno.ENOENT)

    def test_ranks(self):
        with Queue("high", cls="online", priority=1) as high, Queue("low", cls="batch") as low:
            # A machine with other work may let a queue wait for so long that the other is let go.
            self.assertTrue(any(high_first(high, low) for _ in range(50)))
            low.set_class("online")
            low.set_priority(2)
            self.assertTrue(any(high_first(low, high) for _ in range(50)))
            with self.assertRaises(ValueError):
                low.set_class("none")

    def test_missing_library(self):
        with self.assertRaisesRegex(OSError, "giveway run.*GIVEWAY_LIBRARY"):
            giveway.queue._open_library("/none/libgiveway.so")

    def test_hints_use_the_library(self):
        with Queue():
            self.assertFalse(giveway.priority(1))  # no daemon
            self.assertEqual(type(giveway._page.channel()).__name__, "Library")


if __name__ == "__main__":
    unittest.main()
