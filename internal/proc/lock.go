package proc

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockHolder returns the process that has a lock of flock(2) on a file, unless it is in a pid namespace that is
// not visible from ours. A lock is a line such as
//
//	1: FLOCK  ADVISORY  WRITE 708 00:05:9434 0 EOF
func LockHolder(f *os.File) (holder Process, known bool) {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return holder, false
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return holder, false
	}
	defer locks.Close()
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 {
			holder, err = Look(pid)
			return holder, err == nil
		}
	}
	return holder, false
}
