# SPDX-License-Identifier: Apache-2.0
"""Tells Giveway what a program knows about its own work on a GPU.

    giveway.slo(0.010)
    with giveway.request():
        model(x)

All functions may be called from any thread. They return whether a daemon got the
hint; without a daemon they have no effect. Times are in seconds. The daemon
ignores invalid values, such as a negative time.
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

_MAX_VALUE = 2**63 - 1

# Request ids, in a range that C code in the same process is unlikely to use.
_ids = itertools.count(1 << 40)


def _give(kind, value):
    return _page.channel().hint(kind, max(-_MAX_VALUE, min(value, _MAX_VALUE)))


def _ns(seconds, name="seconds"):
    try:
        return int(seconds * 1e9)
    except (OverflowError, ValueError):  # infinity or nan
        return -1
    except TypeError:
        raise TypeError("%s must be a number, not %r" % (name, seconds)) from None


def connected():
    """Whether there is a daemon. It is looked for at the first hint, and at most once a second."""
    return _page.channel().connected()


def priority(n):
    """Sets the priority of the process: a higher one runs first."""
    try:
        n = int(n + 0)  # int() alone would accept strings
    except (TypeError, ValueError, OverflowError):
        raise TypeError("n must be a whole number, not %r" % (n,)) from None
    return _give(_PRIORITY, n)


def deadline(seconds):
    """Sets how long after the process becomes ready its work must be done; 0: no deadline."""
    return _give(_DEADLINE, _ns(seconds))


def laxity(seconds):
    """Says how long the process's work can wait; 0: unknown."""
    return _give(_LAXITY, _ns(seconds))


def work(seconds):
    """Says how much device time a request needs; 0: unknown."""
    return _give(_WORK, _ns(seconds))


def expect(in_seconds):
    """Says how long from now the next work will arrive; 0 or None: unknown."""
    ns = 0 if in_seconds is None else _ns(in_seconds, "in_seconds")
    if ns > 0:
        ns += time.monotonic_ns()
    return _give(_EXPECT, max(ns, -1))


def slo(seconds):
    """Sets how long a request may take; 0: no SLO."""
    return _give(_SLO, _ns(seconds))


def begin():
    """Says that a request begins, and returns its id for end(). Requests may overlap."""
    number = next(_ids)
    _give(_BEGIN, number)
    return number


def end(number):
    """Says that the request with that id ends."""
    return _give(_END, number)


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
            raise TypeError("a generator runs longer than its call: use 'with giveway.request()' inside it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args, **kwargs):
                with _Request():
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                with _Request():
                    return function(*args, **kwargs)

        return wrapper


def request(function=None):
    """A request, as a context manager or as a decorator for a function of which each call is one.

        with giveway.request(): ...
        @giveway.request
        def answer(...): ...      # or async def
    """
    return _Request() if function is None else _Request()(function)


class idempotent:
    """A context manager: commands launched inside it may run twice. Nested uses count as one."""

    _depth = 0

    def __enter__(self):
        with _page.lock:
            idempotent._depth += 1
            if idempotent._depth == 1:
                _give(_IDEMPOTENT, 1)
        return self

    def __exit__(self, *exc):
        with _page.lock:
            idempotent._depth -= 1
            if idempotent._depth == 0:
                _give(_IDEMPOTENT, 0)
