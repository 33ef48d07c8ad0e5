# SPDX-License-Identifier: Apache-2.0
"""Tells Giveway what a program knows of its own work on a GPU.

    giveway.slo(0.010)
    with giveway.request():
        model(x)

All functions may be called from any thread. They return whether a daemon was
told; without one nothing happens. Times are in seconds. What the daemon cannot
believe, such as a time below zero, it ignores.
"""

import functools
import inspect
import itertools
import time

from giveway import _page

__all__ = ["priority", "deadline", "laxity", "work", "expect", "slo", "begin", "end", "request", "idempotent",
           "connected"]

# enum gw_hint_kind of shim/abi.h
_PRIORITY, _DEADLINE, _LAXITY, _WORK, _EXPECT, _SLO, _BEGIN, _END, _IDEMPOTENT = 2, 4, 5, 6, 7, 8, 9, 10, 11

_MOST = 2**63 - 1

# Numbers of requests, far from those that C code in the same process may use.
_numbers = itertools.count(1 << 40)


def _tell(kind, value):
    return _page.teller().hint(kind, max(-_MOST, min(value, _MOST)))


def _ns(seconds, name="seconds"):
    try:
        return int(seconds * 1e9)
    except (OverflowError, ValueError):  # endless, or nan
        return -1
    except TypeError:
        raise TypeError("%s must be a number, not %r" % (name, seconds)) from None


def connected():
    """Whether a daemon listens. It is looked for at the first hint, and at most once a second."""
    return _page.teller().connected()


def priority(n):
    """How urgent the program's work is: higher runs first."""
    try:
        n = int(n + 0)  # int alone takes words too
    except (TypeError, ValueError, OverflowError):
        raise TypeError("n must be a whole number, not %r" % (n,)) from None
    return _tell(_PRIORITY, n)


def deadline(seconds):
    """How long after it becomes ready its work must be done; 0: no matter."""
    return _tell(_DEADLINE, _ns(seconds))


def laxity(seconds):
    """How long its work can wait; 0: not known."""
    return _tell(_LAXITY, _ns(seconds))


def work(seconds):
    """How much device time a request needs; 0: not known."""
    return _tell(_WORK, _ns(seconds))


def expect(in_seconds):
    """The next work will come so long from now; 0 or None: not known."""
    ns = 0 if in_seconds is None else _ns(in_seconds, "in_seconds")
    if ns > 0:
        ns += time.monotonic_ns()
    return _tell(_EXPECT, max(ns, -1))


def slo(seconds):
    """How long a request may take; 0: no matter."""
    return _tell(_SLO, _ns(seconds))


def begin():
    """A request begins. Returns its number, for end(). Requests may overlap."""
    number = next(_numbers)
    _tell(_BEGIN, number)
    return number


def end(number):
    """That request is over."""
    return _tell(_END, number)


class _Request:
    def __enter__(self):
        self._number = begin()
        return self

    def __exit__(self, *exc):
        end(self._number)

    async def __aenter__(self):
        return self.__enter__()

    async def __aexit__(self, *exc):
        self.__exit__()

    def __call__(self, function):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator's request lasts longer than its call: use 'with giveway.request()' inside it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def answer(*args, **kwargs):
                with _Request():
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def answer(*args, **kwargs):
                with _Request():
                    return function(*args, **kwargs)

        return answer


def request(function=None):
    """A request, as a context manager or around each call of a function.

        with giveway.request(): ...
        @giveway.request
        def answer(...): ...      # or async def
    """
    return _Request() if function is None else _Request()(function)


class idempotent:
    """What is launched inside may be run twice. Nested ones count as one."""

    _depth = 0

    def __enter__(self):
        with _page.lock:
            idempotent._depth += 1
            if idempotent._depth == 1:
                _tell(_IDEMPOTENT, 1)
        return self

    def __exit__(self, *exc):
        with _page.lock:
            idempotent._depth -= 1
            if idempotent._depth == 0:
                _tell(_IDEMPOTENT, 0)
