# SPDX-License-Identifier: Apache-2.0
"""Queues of commands: shim/queue.h in Python.

    from giveway.queue import Queue

    with Queue("decode", cls="online") as fast, Queue("train", cls="batch") as slow:
        slow.submit(step, kind="kernel")
        n = fast.submit(answer)            # begins before further commands of the other queue
        fast.wait(n)

A command is a function without arguments that is called on the queue's own thread. An exception
in it goes to sys.unraisablehook. A failed call raises OSError with the errno that the header
names. The module needs libgiveway.so: the one that `giveway run` preloads, or the file that
GIVEWAY_LIBRARY names.
"""

import collections
import ctypes
import errno
import os
import threading

from giveway import _page

__all__ = ["Queue", "Command", "Counts", "CLASSES", "KINDS", "STATES"]

CLASSES = ("standard", "online", "batch", "idle")
KINDS = ("unknown", "kernel", "copy", "event", "sync")
STATES = ("idle", "ready", "suspended")

Command = collections.namedtuple("Command", "number submitted kind begun")  # submitted: time.monotonic()
Counts = collections.namedtuple("Counts", "submitted launched completed dropped")

_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
_DONE, _LATER = 0, 1


class _Counts(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in Counts._fields]


class _Command(ctypes.Structure):
    _fields_ = [("number", ctypes.c_uint64), ("submitted_ns", ctypes.c_uint64), ("kind", ctypes.c_int), ("begun", ctypes.c_int)]


_Q, _I, _N = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
_SIGNATURES = {
    "create": [ctypes.POINTER(_Q), ctypes.c_char_p],
    "destroy": [_Q],
    "submit_kind": [_Q, _I, _RUN, ctypes.c_void_p, ctypes.POINTER(_N)],
    "done": [_Q, _N],
    "wait": [_Q, _N],
    "suspend": [_Q],
    "resume": [_Q],
    "drop": [_Q],
    "bound": [_Q, ctypes.c_uint32],
    "class": [_Q, _I],
    "priority": [_Q, ctypes.c_int32],
    "state": [_Q],
    "counts": [_Q, ctypes.POINTER(_Counts)],
    "commands": [_Q, ctypes.POINTER(_Command), _I],
}

_library = None
_library_lock = threading.Lock()

# The queues that are not closed: their threads call into them even if the program has forgotten them.
_open = set()


def _open_library(name):
    try:
        return ctypes.CDLL(name)
    except OSError as e:
        raise OSError("queues need libgiveway.so: %s; start the program with 'giveway run', or set GIVEWAY_LIBRARY to the file" % e) from e


def _load():
    global _library
    with _library_lock:
        if _library is None:
            library = ctypes.CDLL(None)
            if not hasattr(library, "giveway_queue_create"):
                library = _open_library(os.environ.get("GIVEWAY_LIBRARY") or "libgiveway.so")
                _page.use_library(library, ctypes)
            for name, arguments in _SIGNATURES.items():
                function = getattr(library, "giveway_queue_" + name)
                function.argtypes, function.restype = arguments, _I
            _library = library
    return _library


class Queue:
    """A queue, which runs its commands one after another. It exists until it is closed."""

    def __init__(self, name="giveway", cls=None, priority=None):
        self._library = _load()
        self._handle = _Q()
        self._lock = threading.Lock()
        self._functions = {}  # of commands that have not begun, by key, in the order of submission
        self._keys = 0
        self._runs_on = None  # the thread on which a command runs
        self._call("create", name.encode(), handle=ctypes.byref(self._handle))
        self._run = _RUN(self._run_command)
        _open.add(self)
        try:
            if cls is not None:
                self.set_class(cls)
            if priority is not None:
                self.set_priority(priority)
        except BaseException:
            self.close()
            raise

    def _call(self, name, *arguments, handle=None):
        r = getattr(self._library, "giveway_queue_" + name)(self._handle if handle is None else handle, *arguments)
        if r < 0:
            raise OSError(-r, os.strerror(-r))
        return r

    def _run_command(self, key, number):
        function, later = self._functions.pop(key)
        self._runs_on = threading.get_ident()
        try:
            function()
        finally:
            self._runs_on = None
        return _LATER if later else _DONE

    def submit(self, function, kind="unknown", later=False):
        """Adds a command and returns its number. With later it is done when done(number) is called."""
        number = _N()
        with self._lock:
            self._keys += 1
            key = self._keys
            self._functions[key] = (function, later)
            try:
                self._call("submit_kind", KINDS.index(kind), self._run, key, ctypes.byref(number))
            except BaseException:
                self._functions.pop(key, None)
                raise
        return number.value

    def done(self, number):
        """Says that a command that was submitted with later is done."""
        self._call("done", number)

    def wait(self, number=0):
        """Waits until a command is done or dropped; 0: all commands so far."""
        self._call("wait", number)

    def suspend(self):
        self._call("suspend")

    def resume(self):
        self._call("resume")

    def drop(self):
        """Drops all commands that have not begun. Returns how many."""
        with self._lock:
            dropped = self._call("drop")
            # Commands begin meanwhile: those that were dropped are the last ones of any snapshot.
            keys = list(self._functions)
            for key in keys[len(keys) - dropped:]:
                self._functions.pop(key, None)
        return dropped

    def set_bound(self, most):
        """Sets how many commands may have begun and not be done; 0: any number."""
        self._call("bound", most)

    def set_class(self, cls):
        """Sets the class: online before standard before batch before idle."""
        self._call("class", CLASSES.index(cls))

    def set_priority(self, priority):
        """Sets the priority among the queues of the same class: a higher one runs first."""
        self._call("priority", priority)

    @property
    def state(self):
        return STATES[self._call("state")]

    def counts(self):
        c = _Counts()
        self._call("counts", ctypes.byref(c))
        return Counts(*(getattr(c, n) for n in Counts._fields))

    def commands(self):
        """Returns the commands in flight and then those that wait."""
        room = 16
        while True:
            found = (_Command * room)()
            n = self._call("commands", found, room)
            if n <= room:
                return [Command(c.number, c.submitted_ns / 1e9, KINDS[c.kind], bool(c.begun)) for c in found[:n]]
            room = 2 * n

    def close(self):
        """Drops the commands that have not begun and waits for the others. Further calls have no effect."""
        if self._runs_on == threading.get_ident():
            raise OSError(errno.EDEADLK, os.strerror(errno.EDEADLK))
        with self._lock:
            handle, self._handle = self._handle, _Q()
        if handle:
            self._call("destroy", handle=handle)
            self._functions.clear()
            _open.discard(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
