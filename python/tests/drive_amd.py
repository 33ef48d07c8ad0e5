# SPDX-License-Identifier: Apache-2.0
"""Tests giveway.amd; run by amd/amd_test.go with a double of the driver."""

import errno
import sys

from giveway import amd

control, device, sysfs = sys.argv[1:4]
pid, other = map(int, sys.argv[4:6])


def raises(number, call, *args):
    try:
        call(*args)
    except OSError as e:
        assert e.errno == number, e
    else:
        raise AssertionError("no OSError was raised")


with amd.Controller(control, device, sysfs) as c:
    mine = [(q.gpu, q.queue) for q in c.queues() if q.pid == other]
    assert len(c.queues()) == 3 and len(mine) == 1, c.queues()
    gpu = mine[0][0]
    assert c.slots(gpu).total == 24 and c.slots(gpu).active == 3, c.slots(gpu)
    assert c.unmap(other, mine) == [0]
    assert c.slots(gpu).active == 2
    assert c.unmap(other, mine + [(gpu, 77)]) == [0, -errno.ENOENT]
    assert c.remap(other, mine) == [0]
    assert c.remap_all(other) == 0
    assert c.unmap(other, mine) == [0]  # closing the controller maps it again
    s = c.statistics()
    assert s["unmap"].calls == 3 and s["unmap"].queues == 4 and s["unmap"].failed == 1, s
    assert s["remap"].calls == 1 and s["unmap"].total_ns >= s["unmap"].longest_ns > 0, s

    c.suspend(pid)
    assert any(p["pid"] == pid and p["paused"] for p in c.processes()), c.processes()
    c.resume(pid)
    assert c.status()["devices"][0]["backend"] == "amd"

    raises(errno.ESRCH, c.suspend, (1 << 22) - 1)
    raises(errno.EINVAL, c.suspend, 0)
    raises(errno.EINVAL, c.unmap, other, [])
    raises(errno.ENODEV, c.slots, 1)

with amd.Controller(control + "-none", device, sysfs) as c:
    raises(errno.ENOENT, c.suspend, pid)
c.close()
raises(errno.EINVAL, c.queues)
