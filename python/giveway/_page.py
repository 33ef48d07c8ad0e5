# SPDX-License-Identifier: Apache-2.0
"""The way to the daemon: through the preload library if that is in the process,
else through a page of our own, as shim/abi.h has it. The page is a few words of
memory that the daemon reads; it is asked for at the first hint.
"""

import array
import mmap
import os
import socket
import struct
import sys
import threading
import time

try:
    import fcntl
except ImportError:
    fcntl = None

# A lock that its holder can take again: a signal handler or a finalizer may give
# a hint in the middle of another. At worst one of the two is lost then.
lock = threading.RLock()

_LINUX = sys.platform.startswith("linux") and fcntl is not None  # daemons run nowhere else

_MAGIC, _ABI, _SIZE = 0x59575647, 1, 4096
_REQUESTS, _HINTS = 64, 32
_EXPECT, _BEGIN, _END = 7, 9, 10
_OPEN, _BELL = 180 // 4, 184 // 4  # 32-bit words
_DONE, _GIVEN, _LOG, _RING = 192 // 8, 200 // 8, 256 // 8, 1280 // 8  # 64-bit words
_ASLEEP = 8 // 4

_HELLO = (b"POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\n"
          b"Giveway-Abi: 1\r\nGiveway-Runtime: hint\r\n\r\n")
_HELLO_S = 0.1  # how long a daemon may take to answer
_RETRY_S, _RETRY_MOST_S = 1.0, 64.0
_F_GET_SEALS, _F_SEAL_SHRINK = 1034, 2
_ONE = struct.pack("=Q", 1)


def _fence():
    """Nothing before it is seen after anything behind it. To let go of a lock and to
    take it again is the one way to say so in Python."""
    order = threading.Lock()
    order.acquire()
    order.release()
    order.acquire()


def _sockets():
    if os.environ.get("GIVEWAY_SOCKET"):
        return [os.environ["GIVEWAY_SOCKET"]]
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    return ["/run/giveway/giveway.sock"] + ([os.path.join(own, "giveway.sock")] if own.startswith("/") else [])


def _dial():
    """A connection to the first daemon there is, or None."""
    for path in _sockets():
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            s.settimeout(_HELLO_S)
            s.connect(path)
            return s
        except (OSError, ValueError):
            s.close()
    return None


def _map(fd, prot):
    """Memory that can never get smaller: who shrinks it would make us fault."""
    if not fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK or os.fstat(fd).st_size != _SIZE:
        raise ValueError("not sealed")
    return memoryview(mmap.mmap(fd, _SIZE, mmap.MAP_SHARED, prot))


class _Lodging:
    """What a daemon lends us."""

    def __init__(self, connection):
        self.connection = connection
        self.bell = -1
        connection.sendall(_HELLO)
        text, control, _, _ = connection.recvmsg(512, socket.CMSG_SPACE(3 * 4), socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
        try:
            if not text.startswith(b"HTTP/1.1 101") or len(fds) != 3:
                raise ValueError("refused")
            page, board = _map(fds[0], mmap.PROT_READ | mmap.PROT_WRITE), _map(fds[1], mmap.PROT_READ)
            # Views of whole words: each is read and written at once.
            self.words, self.longs, self.signed = page.cast("I"), page.cast("Q"), page.cast("q")
            self.board = board.cast("I")
            if list(self.words[:3]) != [_MAGIC, _ABI, _SIZE] or list(self.board[:2]) != [_MAGIC, _ABI]:
                raise ValueError("another version")
            os.set_blocking(fds[2], False)
            self.bell = fds.pop()
        finally:
            for fd in fds:
                os.close(fd)
        connection.setblocking(False)

    def over(self):
        """Whether the daemon has hung up, or says something, which it never should."""
        try:
            self.connection.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def ring(self):
        if self.board[_ASLEEP]:
            try:
                os.write(self.bell, _ONE)
            except OSError:
                pass  # it has rung as often as it can

    def close(self):
        self.connection.close()
        if self.bell >= 0:
            os.close(self.bell)
            self.bell = -1


class Page:
    """Hints through a page of our own."""

    def __init__(self):
        self._at = None
        self._standing = {}  # what holds until it is taken back is told to later daemons too
        self._hints = self._bell = self._requests = 0
        self._open = {}
        self._next, self._pause = 0.0, _RETRY_S
        self._dialing = threading.Lock()

    def connected(self):
        with lock:
            self._check()
            return self._at is not None

    def hint(self, kind, value):
        if not self.connected():
            self._connect()
        with lock:
            now = time.monotonic_ns()
            if kind in (_BEGIN, _END):
                self._note(kind, value, now)
            elif kind != _EXPECT:
                self._standing[kind] = value
            return self._write(kind, value, now)

    def _check(self):
        """Looks, at most once a second, whether the daemon is still there."""
        if self._at is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _RETRY_S
        if self._at.over():
            self._at.close()
            self._at = None
            self._next = 0.0  # it may have come back already

    def _connect(self):
        """Looks for a daemon, at most once a second. Others do not wait for it."""
        if not _LINUX or time.monotonic() < self._next or not self._dialing.acquire(False):
            return
        try:
            connection, lodging = _dial(), None
            try:
                lodging = connection and _Lodging(connection)
            except socket.timeout:
                self._pause = min(2 * self._pause, _RETRY_MOST_S)  # it costs us time
            except (OSError, ValueError):
                pass
            if connection and not lodging:
                connection.close()
            with lock:
                self._next = time.monotonic() + self._pause
                if lodging:
                    self._pause = _RETRY_S
                    self._at = lodging
                    self._publish()
        finally:
            self._dialing.release()

    def _publish(self):
        at, now = self._at, time.monotonic_ns()
        at.longs[_GIVEN], at.longs[_DONE] = self._hints, self._requests
        at.words[_OPEN] = len(self._open)
        for kind, value in list(self._standing.items()):
            self._write(kind, value, now)

    def _note(self, kind, number, now):
        """Keeps the log of requests."""
        began = None
        if kind == _BEGIN:
            self._open[number] = now
        else:
            began = self._open.pop(number, None)
        if self._at is None:
            return
        at = self._at
        if began is not None:
            entry = _LOG + 2 * (self._requests % _REQUESTS)
            self._requests += 1
            at.longs[entry], at.longs[entry + 1] = began, now
            _fence()
            at.longs[_DONE] = self._requests
        at.words[_OPEN] = len(self._open)

    def _write(self, kind, value, now):
        at = self._at
        if at is None:
            return False
        entry = _RING + 3 * (self._hints % _HINTS)
        self._hints += 1
        at.words[2 * entry] = 0  # who reads it now knows that it is being written
        _fence()
        at.words[2 * entry + 1], at.signed[entry + 1], at.longs[entry + 2] = kind, value, now
        _fence()
        at.words[2 * entry] = self._hints & 0xFFFFFFFF
        _fence()
        at.longs[_GIVEN] = self._hints
        self._bell = (self._bell + 1) & 0xFFFFFFFF
        at.words[_BELL] = self._bell
        _fence()  # before the look at the board, or both sides sleep
        at.ring()
        return True

    def forked(self):
        """In the child of a fork: the page is the parent's, and so are its requests."""
        if self._at is not None:
            self._at.close()
        standing = self._standing
        self.__init__()
        self._standing = standing


class Library:
    """Hints through the preload library, whose page is the process's."""

    def __init__(self, function, ctypes):
        function.argtypes, function.restype = [ctypes.c_uint32, ctypes.c_int64], ctypes.c_int
        self._hint = function
        self._last = False

    def connected(self):
        return self._last

    def hint(self, kind, value):
        self._last = self._hint(kind, value) == 0
        return self._last

    def forked(self):
        self._last = False


class Nobody:
    """There is the library, and no way to call it."""

    def connected(self):
        return False

    def hint(self, kind, value):
        return False

    def forked(self):
        pass


def _find():
    try:
        import ctypes

        return Library(ctypes.CDLL(None).giveway_hint, ctypes)
    except (ImportError, OSError, AttributeError, TypeError):
        pass
    try:
        with open("/proc/self/maps") as maps:
            return Nobody() if "libgiveway" in maps.read() else Page()
    except OSError:
        return Page()


_teller = None


def teller():
    global _teller
    if _teller is None:
        with lock:
            if _teller is None:
                _teller = _find()
    return _teller


def _forked():
    global lock
    lock = threading.RLock()
    if _teller is not None:
        _teller.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
