"""Tests of the PyTorch client that need neither PyTorch nor a GPU."""

import ctypes
import os
import threading
import time
import types
import unittest
from unittest import mock

import torch_client


class Event:
    """Counts as completed when it is waited for."""

    def __init__(self, blocking=False):
        pass

    def record(self):
        pass

    def synchronize(self):
        time.sleep(0.001)


def fake_torch(cuda="13.0", hip=None):
    version = types.SimpleNamespace(cuda=cuda, hip=hip)
    cuda = types.SimpleNamespace(Event=Event, synchronize=lambda: None, get_device_name=lambda: "Fake GPU")
    return types.SimpleNamespace(cuda=cuda, version=version)


class Anything:
    """Stands for PyTorch and all that it returns: it takes every call. It has three parts."""

    def __init__(self):
        self.calls = []

    def take(self, *_args, **_kwargs):
        return Anything()

    def __call__(self, *_args, **_kwargs):
        self.calls.append(_args)
        return Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Anything()
        setattr(self, name, made)
        return made

    def __iter__(self):
        return iter([Anything(), Anything(), Anything()])

    def __exit__(self, *_):
        return False

    def __setitem__(self, _key, _value):
        pass

    __enter__ = __getitem__ = __add__ = __mul__ = take


class Clock:
    """A clock that goes on only when it is read or slept on."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Sent(list):
    """Messages that were sent."""

    def __call__(self, **message):
        self.append(message)

    def last(self, key):
        return [m[key] for m in self if key in m][-1]

    def wait_for(self, condition):
        for _ in range(1000):
            if condition(self):
                return
            time.sleep(0.01)
        raise AssertionError(f"waited in vain; got {self[-3:]}")


class Client(unittest.TestCase):
    def setUp(self):
        self.sent = Sent()
        patch = mock.patch.object(torch_client, "send", self.sent)
        patch.start()
        self.addCleanup(patch.stop)

    def served(self, period, seed, takes=0.001, seconds=0.3):
        clock = Clock()
        with mock.patch.object(torch_client, "time", clock):
            torch_client.serve(lambda: clock.sleep(takes), period, seconds, seed)
        return self.sent.last("answered")

    def test_arrivals(self):
        fixed, loop = self.served(0.01, 0), self.served(0, 0)
        self.assertIn(len(fixed["samples_us"]), (29, 30))
        self.assertGreater(len(loop["samples_us"]), 250)  # it never rests
        for us in fixed["samples_us"] + loop["samples_us"]:
            self.assertAlmostEqual(us, 1000, delta=20)
        self.assertNotIn("seed", fixed)
        drawn = self.served(0.01, 7)
        self.assertEqual(drawn["seed"], 7)
        self.assertEqual(drawn, self.served(0.01, 7))
        self.assertNotEqual(drawn["samples_us"], self.served(0.01, 8)["samples_us"])

    def test_ready_names_the_runtime(self):
        torch_client.ready(fake_torch())
        self.assertEqual((self.sent.last("cuda"), self.sent.last("hip")), ("13.0", ""))
        torch_client.ready(fake_torch(cuda=None, hip="6.3.42131"))
        self.assertEqual((self.sent.last("cuda"), self.sent.last("hip")), ("", "6.3.42131"))

    def test_overload_is_counted(self):
        got = self.served(0.002, 0, takes=0.05, seconds=0.1)
        self.assertIn(len(got["samples_us"]) + got["unfinished"], (49, 50))
        self.assertIn(len(got["samples_us"]), (4, 5))  # those that began by twice the length

    def test_batch_client_works_and_rests(self):
        steps = []
        commands = torch_client.Commands(working=False)
        args = torch_client.flags(["be", "--wait"])
        with mock.patch.object(torch_client, "batch_work", lambda *_: (lambda: steps.append(1), 2)):
            threading.Thread(target=torch_client.be, args=(fake_torch(), args, commands), daemon=True).start()
            self.sent.wait_for(lambda sent: any("progress" in m for m in sent))
            self.assertEqual(len(steps), 5)  # warm-up only
            self.order(commands, "work")
            self.sent.wait_for(lambda sent: sent.last("progress")["done"] > 10)
            self.order(commands, "rest")
            self.sent.wait_for(lambda sent: sent.last("progress")["done"] == len(steps) - 5)
            seen = len(self.sent)
            self.sent.wait_for(lambda sent: len(sent) > seen + 2)
            self.assertEqual(self.sent.last("progress")["done"], len(steps) - 5)
            self.order(commands, "work")
            before = len(steps)
            self.sent.wait_for(lambda _: len(steps) > before + 10)

    def order(self, commands, *lines):
        """Lets commands read lines. It wants to exit at their end."""
        with mock.patch.object(torch_client.sys, "stdin", [line + "\n" for line in lines]), \
                mock.patch.object(torch_client.os, "_exit") as ended:
            commands.read()
        ended.assert_called_once_with(0)

    def test_commands(self):
        commands = torch_client.Commands(working=True)
        self.order(commands, "start", "start random", "quit", "start never")
        self.assertEqual([commands.next_start(), commands.next_start()], ["", "random"])
        self.assertEqual(commands.starts, [])
        self.order(commands, "dance")
        self.assertIn("dance", self.sent.last("error"))

    def test_flags_of_cases(self):
        lines = os.environ.get("FLAGS_OF_CASES", "lc --mode eager").strip().split("\n")
        for line in lines:
            args = torch_client.flags(line.split())
            self.assertIn(args.what, ("lc", "be"))

    def test_batch_work(self):
        made = []
        with mock.patch.object(torch_client, "inference", lambda _, size: made.append(size) or (lambda: None)), \
                mock.patch.object(torch_client, "training", lambda _: made.append("training")):
            aheads = [torch_client.batch_work(fake_torch(), work)[1] for work in ("small", "big", "train")]
        self.assertEqual((made, aheads), ([1, 64, "training"], [0, 2, 1]))

    def test_every_work_runs(self):
        """Runs all lines of each work, so that a wrong name is found without PyTorch."""
        torch = Anything()
        with mock.patch.object(torch_client, "resnet50", lambda _nn: Anything()):
            for mode in ("graph", "eager", "decode"):
                torch_client.request(torch, mode)()
            for work in ("train", "small", "big"):
                torch_client.batch_work(torch, work)[0]()
            for exact in (torch_client.exact_inference, torch_client.exact_decoding, torch_client.exact_training):
                self.assertGreater(len(exact(torch)()), 0)

    def test_checksum(self):
        def tensor(*values):
            array = (ctypes.c_float * len(values))(*values)
            host = mock.Mock(data_ptr=lambda: ctypes.addressof(array), numel=lambda: len(values), element_size=lambda: 4)
            host.contiguous.return_value = host
            tensor = mock.Mock(**{"detach.return_value.cpu.return_value": host})
            tensor.keep = array
            return tensor

        one = torch_client.checksum([tensor(1, 2), tensor(3)])
        self.assertEqual(one, torch_client.checksum([tensor(1, 2), tensor(3)]))
        self.assertNotEqual(one, torch_client.checksum([tensor(1, 2), tensor(3.0000002)]))

    def test_equal_answers_each_start(self):
        commands = torch_client.Commands(working=True)
        work = mock.Mock(return_value=mock.Mock(return_value=[]))
        args = torch_client.flags(["equal", "--exact", "training"])
        with mock.patch.object(torch_client, "exact_training", work):
            threading.Thread(target=torch_client.equal, args=(Anything(), args, commands), daemon=True).start()
            self.order(commands, "start", "start")
            self.sent.wait_for(lambda sent: sum("checksum" in m for m in sent) == 2)


if __name__ == "__main__":
    unittest.main()
