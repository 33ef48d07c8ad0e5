# SPDX-License-Identifier: Apache-2.0
"""Tests of the hints that the functions give, and of daemons that are missing or misbehave."""

import array
import asyncio
import fcntl
import os
import socket
import tempfile
import threading
import time
import unittest

import giveway
from giveway import _page

PRIORITY, DEADLINE, LAXITY, WORK, EXPECT, SLO, BEGIN, END, IDEMPOTENT = 2, 4, 5, 6, 7, 8, 9, 10, 11


class Recorder:
    def __init__(self):
        self.hints = []

    def connected(self):
        return True

    def hint(self, kind, value):
        self.hints.append((kind, value))
        return True

    def forked(self):
        pass


class TestCalls(unittest.TestCase):
    def setUp(self):
        self.recorder = Recorder()
        before = _page.channel()
        _page._channel = self.recorder
        self.addCleanup(setattr, _page, "_channel", before)

    def kinds(self):
        return [kind for kind, _ in self.recorder.hints]

    def test_values(self):
        giveway.priority(-3)
        giveway.deadline(0.25)
        giveway.laxity(1)
        giveway.work(0.5)
        giveway.slo(0)
        self.assertEqual(self.recorder.hints, [(PRIORITY, -3), (DEADLINE, 250_000_000), (LAXITY, 10**9),
                                              (WORK, 500_000_000), (SLO, 0)])

    def test_expect(self):
        before = time.monotonic_ns()
        giveway.expect(in_seconds=1.5)
        giveway.expect(None)
        giveway.expect(0)
        giveway.expect(-5)
        (_, at), *others = self.recorder.hints
        self.assertTrue(before + 1.5e9 <= at <= time.monotonic_ns() + 1.5e9)
        self.assertEqual(others, [(EXPECT, 0), (EXPECT, 0), (EXPECT, -1)])

    def test_invalid_values_reach_the_daemon(self):
        for seconds in (float("nan"), float("inf"), -1, 1e300):
            giveway.laxity(seconds)
        giveway.priority(10**40)
        values = [value for _, value in self.recorder.hints]
        self.assertEqual(values, [-1, -1, -10**9, -1, 2**63 - 1])

    def test_wrong_types_are_refused(self):
        for call, name in ((giveway.deadline, "seconds"), (giveway.slo, "seconds"), (giveway.expect, "in_seconds")):
            with self.assertRaisesRegex(TypeError, "^%s must be a number, not 'soon'$" % name):
                call("soon")
        with self.assertRaisesRegex(TypeError, "^seconds must be a number, not None$"):
            giveway.slo(None)
        for word in ("high", "5", b"5", None, float("nan")):
            with self.assertRaisesRegex(TypeError, "^n must be a whole number, not %r$" % (word,)):
                giveway.priority(word)
        self.assertEqual(self.recorder.hints, [])

    def test_request(self):
        with giveway.request():
            with giveway.request():
                self.assertEqual(self.kinds(), [BEGIN, BEGIN])
        (_, first), (_, second), *ends = self.recorder.hints
        self.assertNotEqual(first, second)
        self.assertEqual(ends, [(END, second), (END, first)])

    def test_request_that_fails(self):
        with self.assertRaises(ZeroDivisionError):
            with giveway.request():
                1 / 0
        self.assertEqual(self.kinds(), [BEGIN, END])

    def test_decorators(self):
        @giveway.request
        def answer(n, *, more):
            """What it says."""
            if n:
                answer(n - 1, more=more)
            return n + more

        self.assertEqual((answer(1, more=2), answer.__name__, answer.__doc__), (3, "answer", "What it says."))
        self.assertEqual(self.kinds(), [BEGIN, BEGIN, END, END])

        @giveway.request()
        def other():
            return 7

        self.assertEqual((other(), self.kinds()[4:]), (7, [BEGIN, END]))

    def test_async(self):
        @giveway.request
        async def answer(n):
            await asyncio.sleep(0)
            self.assertEqual(self.kinds()[:2], [BEGIN, BEGIN])  # both are open
            return n

        async def both():
            return await asyncio.gather(answer(1), answer(2))

        async def block():
            async with giveway.request():
                pass

        self.assertEqual(asyncio.run(both()), [1, 2])
        self.assertEqual(self.kinds(), [BEGIN, BEGIN, END, END])
        asyncio.run(block())
        self.assertEqual(self.kinds()[4:], [BEGIN, END])

    def test_generators_are_refused(self):
        def sync():
            yield 1

        async def asynchronous():
            yield 1

        self.assertRaises(TypeError, giveway.request, sync)
        self.assertRaises(TypeError, giveway.request, asynchronous)

    def test_idempotent(self):
        with giveway.idempotent():
            with giveway.idempotent():
                pass
            self.assertEqual(self.recorder.hints, [(IDEMPOTENT, 1)])
        self.assertEqual(self.recorder.hints, [(IDEMPOTENT, 1), (IDEMPOTENT, 0)])

    def test_begin_and_end(self):
        number = giveway.begin()
        giveway.end(number)
        self.assertEqual(self.recorder.hints, [(BEGIN, number), (END, number)])


class TestDaemons(unittest.TestCase):
    """Daemons that are missing or misbehave."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.socket = os.path.join(self.dir.name, "s")
        before = os.environ.get("GIVEWAY_SOCKET")
        os.environ["GIVEWAY_SOCKET"] = self.socket
        self.addCleanup(lambda: os.environ.pop("GIVEWAY_SOCKET") if before is None
                        else os.environ.update(GIVEWAY_SOCKET=before))

    def test_none(self):
        page = _page.Page()
        self.assertFalse(page.hint(PRIORITY, 1))
        self.assertFalse(page.connected())

    def memory(self, size=4096, seals=_page._F_SEAL_SHRINK, content=b""):
        fd = os.memfd_create("bad", 2)  # MFD_ALLOW_SEALING
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, size)
        os.write(fd, content)
        fcntl.fcntl(fd, 1033, seals)  # F_ADD_SEALS
        return fd

    def test_bad(self):
        """After a bad answer there is no page and no error, and no descriptor is left open."""
        yes, doorbell = b"HTTP/1.1 101 Switching Protocols\r\n\r\n", self.memory()
        good = self.memory(content=_page.struct.pack("=III", _page._MAGIC, 1, 4096))
        answers = {
            "silent": None,
            "closes": (b"", []),
            "refused": (b"HTTP/1.1 403 Forbidden\r\n\r\n", []),
            "no descriptors": (yes, []),
            "too few descriptors": (yes, [good, doorbell]),
            "too many descriptors": (yes, [good, good, doorbell, doorbell, doorbell]),
            "wrong status code": (b"HTTP/1.1 200 OK\r\n\r\n", [good, good, doorbell]),
            "zeros": (yes, [self.memory(), self.memory(), doorbell]),
            "not sealed": (yes, [self.memory(seals=0), good, doorbell]),
            "too small": (yes, [self.memory(size=64), good, doorbell]),
            "bad status page": (yes, [good, self.memory(), doorbell]),
        }
        for name, answer in answers.items():
            with self.subTest(name):
                self.against(answer)

    @unittest.skipIf(os.geteuid(), "needs root, to listen as another user")
    def test_another_users_listener(self):
        """Nothing is sent to a socket on which another user listens."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.socket)
            os.seteuid(65534)
            try:
                listener.listen(1)  # the kernel takes the user from here
            finally:
                os.seteuid(0)
            page = _page.Page()
            self.assertFalse(page.hint(PRIORITY, 1))
            connection, _ = listener.accept()
            with connection:
                self.assertEqual(connection.recv(1000), b"")

    def against(self, answer):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.socket)
            listener.listen(1)
            before = len(os.listdir("/proc/self/fd"))

            def serve():
                connection, _ = listener.accept()
                if answer is None:
                    connection.recv(1000)
                    connection.recv(1)  # until it gives up
                elif answer[0]:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", answer[1]))]
                    connection.sendmsg([answer[0]], rights if answer[1] else [])
                connection.close()

            thread = threading.Thread(target=serve)
            thread.start()
            page = _page.Page()
            self.assertFalse(page.hint(PRIORITY, 1))
            self.assertFalse(page.connected())
            thread.join()
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        os.unlink(self.socket)


if __name__ == "__main__":
    unittest.main()
