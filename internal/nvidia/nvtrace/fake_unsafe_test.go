package nvtrace

import "unsafe"

// paramsAt is what a call's address points to: pinned memory of the caller's.
func paramsAt(address uint64, size uint32) []byte {
	if size == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), size)
}
