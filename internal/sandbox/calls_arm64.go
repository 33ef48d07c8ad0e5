package sandbox

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

var archCalls = []uint32{}

var archDenied = []uint32{unix.SYS_KEXEC_FILE_LOAD}
