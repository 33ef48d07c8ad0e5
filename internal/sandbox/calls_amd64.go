package sandbox

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

var archCalls = []uint32{unix.SYS_EPOLL_WAIT, unix.SYS_ARCH_PRCTL}

var archDenied = []uint32{
	unix.SYS_KEXEC_FILE_LOAD, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_MKNOD, unix.SYS_USELIB, unix.SYS__SYSCTL,
}
