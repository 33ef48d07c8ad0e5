package nvtrace

import (
	"sync/atomic"
	"unsafe"
)

// load32 reads a word that the driver writes. Everything that the driver wrote before the
// word is visible afterwards.
func load32(b []byte, at int) uint32 {
	_ = b[at+3]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[at])))
}

func load64(b []byte, at int) uint64 {
	_ = b[at+7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[at])))
}
