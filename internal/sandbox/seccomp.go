package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data: see seccomp(2). The machines that Go runs on Linux on
// here are little-endian, so the low half of an argument comes first.
const (
	offNumber   = 0
	offArch     = 4
	offFirstArg = 16
)

// x32Bit marks a system call of amd64's x32 ABI, whose numbers are others.
const x32Bit = 0x40000000

const refused = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func ret(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

// when runs the instructions only if the loaded word and k compare so.
func when(compare uint16, k uint32, then ...unix.SockFilter) []unix.SockFilter {
	jump := unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, K: k, Jf: uint8(len(then))}
	return append([]unix.SockFilter{jump}, then...)
}

// begin ends a process that uses another machine's calls, and loads the call's number.
func begin() []unix.SockFilter {
	return slices.Concat(
		[]unix.SockFilter{load(offArch), {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1}, ret(unix.SECCOMP_RET_KILL_PROCESS)},
		[]unix.SockFilter{load(offNumber)},
		when(unix.BPF_JGE, x32Bit, ret(refused)),
	)
}

// allow returns a filter that refuses all calls but these, new processes that are not
// threads, and signals to other processes than this one.
func allow(calls []uint32) []unix.SockFilter {
	p := begin()
	for _, n := range calls {
		p = append(p, when(unix.BPF_JEQ, n, ret(unix.SECCOMP_RET_ALLOW))...)
	}
	ifArgument := func(compare uint16, k uint32) []unix.SockFilter {
		return slices.Concat([]unix.SockFilter{load(offFirstArg)}, when(compare, k, ret(unix.SECCOMP_RET_ALLOW)), []unix.SockFilter{ret(refused)})
	}
	return slices.Concat(p,
		when(unix.BPF_JEQ, unix.SYS_CLONE, ifArgument(unix.BPF_JSET, unix.CLONE_THREAD)...),
		when(unix.BPF_JEQ, unix.SYS_TGKILL, ifArgument(unix.BPF_JEQ, uint32(os.Getpid()))...),
		// The C library tries clone3 first, and then clone, whose flags can be read here.
		when(unix.BPF_JEQ, unix.SYS_CLONE3, ret(unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS))),
		[]unix.SockFilter{ret(refused)},
	)
}

// deny returns a filter that refuses these calls only.
func deny(calls []uint32) []unix.SockFilter {
	p := begin()
	for _, n := range calls {
		p = append(p, when(unix.BPF_JEQ, n, ret(refused))...)
	}
	return append(p, ret(unix.SECCOMP_RET_ALLOW))
}

// install puts a filter in force for all threads of this process, and those and the
// processes that they start. An unprivileged process may do so once no program that it
// starts can gain rights.
func install(program []unix.SockFilter) error {
	runtime.LockOSThread() // both calls are about one thread; the second then about all
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up gaining rights: %w", err)
	}
	if err := setFilter(program); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}
