# SPDX-License-Identifier: Apache-2.0
"""How hints reach the daemon: through the shim if it is loaded in the process,
else through a page of our own, as shim/abi.h defines it. A page is memory that the daemon
reads; it is requested at the first hint.
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

# Reentrant, because a signal handler or a finalizer may give a hint in the middle of another
# one. At worst one of the two hints is lost then.
lock = threading.RLock()

_LINUX = sys.platform.startswith("linux") and fcntl is not None  # the daemon runs on Linux only

# Numbers of shim/abi.h: constants, hint kinds, and offsets in units of the word size.
_MAGIC, _ABI, _SIZE = 0x59575647, 1, 4096
_REQUEST_ENTRIES, _HINT_ENTRIES = 64, 32
_EXPECT, _BEGIN, _END = 7, 9, 10
_OPEN_REQUESTS, _DOORBELL = 180 // 4, 184 // 4  # 32-bit words
_REQUESTS, _HINTS, _LOG, _RING = 192 // 8, 200 // 8, 256 // 8, 1280 // 8  # 64-bit words
_ASLEEP = 8 // 4  # of the status page

_HELLO = (b"POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\n"
          b"Giveway-Abi: 1\r\nGiveway-Runtime: hint\r\n\r\n")
_HELLO_TIMEOUT_S = 0.1
_RETRY_S, _MAX_RETRY_S = 1.0, 64.0
_F_GET_SEALS, _F_SEAL_SHRINK = 1034, 2
_ONE = struct.pack("=Q", 1)


def _fence():
    """A full memory barrier. Python has none; taking and releasing a lock does the same."""
    order = threading.Lock()
    order.acquire()
    order.release()
    order.acquire()


def _sockets():
    if os.environ.get("GIVEWAY_SOCKET"):
        return [os.environ["GIVEWAY_SOCKET"]]
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    return ["/run/giveway/giveway.sock"] + ([os.path.join(own, "giveway.sock")] if own.startswith("/") else [])


def _trusted(connection, path):
    """Whether root or this process's user listens. In a user namespace root may be shown as
    65534; then only the machine's socket is trusted, which only root can make."""
    _, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (0, os.geteuid()) or uid == 65534 and path == "/run/giveway/giveway.sock"


def _dial():
    """Returns a connection to the first daemon that accepts one, or None."""
    for path in _sockets():
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            s.settimeout(_HELLO_TIMEOUT_S)
            s.connect(path)
            if _trusted(s, path):
                return s
        except (OSError, ValueError):
            pass
        s.close()
    return None


def _map(fd, prot):
    """Maps memory that cannot shrink: an access after it shrank would fault."""
    if not fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK or os.fstat(fd).st_size != _SIZE:
        raise ValueError("not sealed")
    return memoryview(mmap.mmap(fd, _SIZE, mmap.MAP_SHARED, prot))


class _Connection:
    """A connection to a daemon, and the memory that the daemon has sent over it."""

    def __init__(self, connection):
        self.connection = connection
        self.doorbell = -1
        connection.sendall(_HELLO)
        text, control, _, _ = connection.recvmsg(512, socket.CMSG_SPACE(3 * 4), socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
        try:
            if not text.startswith(b"HTTP/1.1 101") or len(fds) != 3:
                raise ValueError("refused")
            page, status = _map(fds[0], mmap.PROT_READ | mmap.PROT_WRITE), _map(fds[1], mmap.PROT_READ)
            # Views of whole words: each access is a single load or store.
            self.words, self.longs, self.signed = page.cast("I"), page.cast("Q"), page.cast("q")
            self.status = status.cast("I")
            if list(self.words[:3]) != [_MAGIC, _ABI, _SIZE] or list(self.status[:2]) != [_MAGIC, _ABI]:
                raise ValueError("another version")
            os.set_blocking(fds[2], False)
            self.doorbell = fds.pop()
        finally:
            for fd in fds:
                os.close(fd)
        connection.setblocking(False)

    def ended(self):
        """Whether the daemon has closed the connection, or sent something, which it never should."""
        try:
            self.connection.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def ring(self):
        """Writes to the doorbell if the daemon sleeps."""
        if self.status[_ASLEEP]:
            try:
                os.write(self.doorbell, _ONE)
            except OSError:
                pass  # the eventfd's counter is full: it is readable already

    def close(self):
        self.connection.close()
        if self.doorbell >= 0:
            os.close(self.doorbell)
            self.doorbell = -1


class Page:
    """Gives hints through a page of its own."""

    def __init__(self):
        self._conn = None
        self._lasting = {}  # hints that hold until they are replaced: later daemons get them too
        self._hints = self._doorbell = self._requests = 0
        self._open = {}
        self._next, self._retry = 0.0, _RETRY_S
        self._dialing = threading.Lock()

    def connected(self):
        with lock:
            self._check()
            return self._conn is not None

    def hint(self, kind, value):
        if not self.connected():
            self._connect()
        with lock:
            now = time.monotonic_ns()
            if kind in (_BEGIN, _END):
                self._log_request(kind, value, now)
            elif kind != _EXPECT:
                self._lasting[kind] = value
            return self._write_hint(kind, value, now)

    def _check(self):
        """Checks at most once a second whether the daemon is still connected."""
        if self._conn is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _RETRY_S
        if self._conn.ended():
            self._conn.close()
            self._conn = None
            self._next = 0.0  # a new daemon may be there already

    def _connect(self):
        """Tries to connect, at most once a second. Other threads do not wait for it."""
        if not _LINUX or time.monotonic() < self._next or not self._dialing.acquire(False):
            return
        try:
            sock, conn = _dial(), None
            try:
                conn = sock and _Connection(sock)
            except socket.timeout:
                self._retry = min(2 * self._retry, _MAX_RETRY_S)  # each attempt costs the caller time
            except (OSError, ValueError):
                pass
            if sock and not conn:
                sock.close()
            with lock:
                self._next = time.monotonic() + self._retry
                if conn:
                    self._retry = _RETRY_S
                    self._conn = conn
                    self._publish()
        finally:
            self._dialing.release()

    def _publish(self):
        """Writes the current state to the page of a new daemon."""
        conn, now = self._conn, time.monotonic_ns()
        conn.longs[_HINTS], conn.longs[_REQUESTS] = self._hints, self._requests
        conn.words[_OPEN_REQUESTS] = len(self._open)
        for kind, value in list(self._lasting.items()):
            self._write_hint(kind, value, now)

    def _log_request(self, kind, number, now):
        """Counts a request when it begins, and logs it when it ends."""
        began = None
        if kind == _BEGIN:
            self._open[number] = now
        else:
            began = self._open.pop(number, None)
        if self._conn is None:
            return
        conn = self._conn
        if began is not None:
            entry = _LOG + 2 * (self._requests % _REQUEST_ENTRIES)
            self._requests += 1
            conn.longs[entry], conn.longs[entry + 1] = began, now
            _fence()
            conn.longs[_REQUESTS] = self._requests
        conn.words[_OPEN_REQUESTS] = len(self._open)

    def _write_hint(self, kind, value, now):
        conn = self._conn
        if conn is None:
            return False
        entry = _RING + 3 * (self._hints % _HINT_ENTRIES)
        self._hints += 1
        conn.words[2 * entry] = 0  # a reader sees that the entry is being written
        _fence()
        conn.words[2 * entry + 1], conn.signed[entry + 1], conn.longs[entry + 2] = kind, value, now
        _fence()
        conn.words[2 * entry] = self._hints & 0xFFFFFFFF
        _fence()
        conn.longs[_HINTS] = self._hints
        self._doorbell = (self._doorbell + 1) & 0xFFFFFFFF
        conn.words[_DOORBELL] = self._doorbell
        _fence()  # the word must be visible before the status page is read, or the ring may be lost
        conn.ring()
        return True

    def close(self):
        """Gives up the page, after which there is another one."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def forked(self):
        """In the child of a fork: the page and its requests are the parent's."""
        if self._conn is not None:
            self._conn.close()
        lasting = self._lasting
        self.__init__()
        self._lasting = lasting


class Library:
    """Gives hints through the shim, which has the process's page."""

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


class Disabled:
    """Gives no hints: the library is loaded, but cannot be called."""

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
            return Disabled() if "libgiveway" in maps.read() else Page()
    except OSError:
        return Page()


_channel = None


def channel():
    """Returns the way to the daemon that this process uses."""
    global _channel
    if _channel is None:
        with lock:
            if _channel is None:
                _channel = _find()
    return _channel


def use_library(library, ctypes):
    """Gives hints through the library from now on: it was loaded by this process and has a page of
    its own, which replaces the one that was used so far."""
    global _channel
    with lock:
        before, _channel = _channel, Library(library.giveway_hint, ctypes)
        if isinstance(before, Page):
            before.close()


def _forked():
    global lock
    lock = threading.RLock()
    if _channel is not None:
        _channel.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
