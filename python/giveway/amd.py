# SPDX-License-Identifier: Apache-2.0
"""Control of AMD compute queues, for programs that schedule them themselves: amd/giveway_amd.h
in Python.

    from giveway import amd

    with amd.Controller() as c:
        for q in c.queues():
            print(q.pid, q.gpu, q.queue)
        c.suspend(4711)                       # by the daemon, until it is resumed
        c.resume(4711)
        mine = [(q.gpu, q.queue) for q in c.queues() if q.pid == 4711]
        c.unmap(4711, mine)                   # by a patched driver, in one call
        c.remap(4711, mine)                   # closing the controller does it too

A failed call raises OSError with the errno that the header names. The module needs
libgiveway-amd.so; GIVEWAY_AMD_LIBRARY may give its path.
"""

import collections
import ctypes
import json
import os

__all__ = ["Controller", "Queue", "Slots", "Calls", "DEFAULT_GRACE"]

DEFAULT_GRACE = 0xFFFFFFFF

Queue = collections.namedtuple("Queue", "pid gpu queue")
Slots = collections.namedtuple("Slots", "reserved priority total active")
Calls = collections.namedtuple("Calls", "calls queues failed total_ns longest_ns")


class _Options(ctypes.Structure):
    _fields_ = [(n, ctypes.c_char_p) for n in ("socket", "device", "sysfs")]


class _Queue(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_int32), ("gpu", ctypes.c_uint32), ("queue", ctypes.c_uint32), ("status", ctypes.c_int32)]


class _Slots(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in Slots._fields]


class _Calls(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in Calls._fields]


class _Statistics(ctypes.Structure):
    _fields_ = [("unmap", _Calls), ("remap", _Calls)]


_H, _I, _U = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
_SIGNATURES = {
    "init": [ctypes.POINTER(_H), ctypes.POINTER(_Options)],
    "list": [_H, ctypes.POINTER(_Queue), ctypes.c_size_t],
    "suspend": [_H, _I],
    "resume": [_H, _I],
    "processes": [_H, ctypes.c_char_p, ctypes.c_size_t],
    "status": [_H, ctypes.c_char_p, ctypes.c_size_t],
    "unmap": [_H, _I, ctypes.POINTER(_Queue), ctypes.c_size_t, _U],
    "remap": [_H, _I, ctypes.POINTER(_Queue), ctypes.c_size_t],
    "remap_all": [_H, _I],
    "reserve": [_H, _U, _U, _U],
    "slots": [_H, _U, ctypes.POINTER(_Slots)],
    "stats": [_H, ctypes.POINTER(_Statistics)],
}


def _load():
    library = ctypes.CDLL(os.environ.get("GIVEWAY_AMD_LIBRARY") or "libgiveway-amd.so")
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, "gw_amd_" + name)
        function.argtypes, function.restype = arguments, _I
    library.gw_amd_cleanup.argtypes, library.gw_amd_cleanup.restype = [_H], None
    return library


class Controller:
    """A handle of the library. Closing it undoes the changes made in the driver through it."""

    def __init__(self, socket=None, device=None, sysfs=None):
        self._handle = _H()
        self._library = _load()
        options = _Options(*(p and os.fsencode(p) for p in (socket, device, sysfs)))
        self._check(self._library.gw_amd_init(ctypes.byref(self._handle), ctypes.byref(options)))

    def close(self):
        """Closes the handle. Further calls have no effect."""
        handle, self._handle = self._handle, _H()
        self._library.gw_amd_cleanup(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @staticmethod
    def _check(result):
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result

    def _call(self, name, *arguments):
        return self._check(getattr(self._library, "gw_amd_" + name)(self._handle, *arguments))

    def queues(self):
        """Returns the compute queues of all processes."""
        room = 64
        while True:
            found = (_Queue * room)()
            n = self._call("list", found, room)
            if n <= room:
                return [Queue(q.pid, q.gpu, q.queue) for q in found[:n]]
            room = 2 * n

    def suspend(self, pid):
        self._call("suspend", pid)

    def resume(self, pid):
        self._call("resume", pid)

    def _json(self, name):
        room = 1 << 16
        while True:
            text = ctypes.create_string_buffer(room)
            n = self._call(name, text, room)
            if n < room:
                return json.loads(text.value.decode())
            room = 2 * n

    def processes(self):
        """Returns what the daemon knows about the processes, a list like that in `giveway ps --json`."""
        return self._json("processes")

    def status(self):
        """Returns the status of the daemon and its devices, as `giveway doctor --json` prints it."""
        return self._json("status")

    def _batch(self, name, pid, queues, *more):
        entries = (_Queue * len(queues))(*(_Queue(0, gpu, queue) for gpu, queue in queues))
        self._call(name, pid, entries, len(queues), *more)
        return [e.status for e in entries]

    def unmap(self, pid, queues, grace=DEFAULT_GRACE):
        """Unmaps queues, given as (gpu, queue) pairs. Returns 0 or -errno for each."""
        return self._batch("unmap", pid, queues, grace)

    def remap(self, pid, queues):
        """Maps the queues again. Returns 0 or -errno for each."""
        return self._batch("remap", pid, queues)

    def remap_all(self, pid):
        return self._call("remap_all", pid)

    def reserve(self, gpu, slots, priority):
        self._call("reserve", gpu, slots, priority)

    def slots(self, gpu):
        s = _Slots()
        self._call("slots", gpu, ctypes.byref(s))
        return Slots(s.reserved, s.priority, s.total, s.active)

    def statistics(self):
        """Returns the calls made through this controller: {"unmap": Calls, "remap": Calls}."""
        s = _Statistics()
        self._call("stats", ctypes.byref(s))
        return {n: Calls(*(getattr(getattr(s, n), f) for f in Calls._fields)) for n in ("unmap", "remap")}
