package nvrm

import (
	"errors"
	"fmt"
)

// Status is RM's answer to an ioctl that the kernel accepted. Every value but OK is an
// error. From nvstatuscodes.h.
type Status uint32

const (
	OK                         Status = 0x00
	ErrBusyRetry               Status = 0x03
	ErrGPUIsLost               Status = 0x0f
	ErrInsufficientPermissions Status = 0x1b
	ErrInvalidArgument         Status = 0x1f
	ErrInvalidChannel          Status = 0x21
	ErrInvalidClass            Status = 0x22
	ErrInvalidClient           Status = 0x23
	ErrInvalidCommand          Status = 0x24
	ErrInvalidObject           Status = 0x31
	ErrInvalidObjectHandle     Status = 0x33
	ErrInvalidObjectParent     Status = 0x36
	ErrInvalidParamStruct      Status = 0x3a
	ErrInvalidState            Status = 0x40
	ErrNoMemory                Status = 0x51
	ErrNotSupported            Status = 0x56
	ErrObjectNotFound          Status = 0x57
	ErrStateInUse              Status = 0x63
	ErrTimeout                 Status = 0x65
	ErrGeneric                 Status = 0xffff
)

var statusNames = map[Status]string{
	OK: "NV_OK", ErrBusyRetry: "NV_ERR_BUSY_RETRY", ErrGPUIsLost: "NV_ERR_GPU_IS_LOST",
	ErrInsufficientPermissions: "NV_ERR_INSUFFICIENT_PERMISSIONS", ErrInvalidArgument: "NV_ERR_INVALID_ARGUMENT",
	ErrInvalidChannel: "NV_ERR_INVALID_CHANNEL", ErrInvalidClass: "NV_ERR_INVALID_CLASS", ErrInvalidClient: "NV_ERR_INVALID_CLIENT",
	ErrInvalidCommand: "NV_ERR_INVALID_COMMAND", ErrInvalidObject: "NV_ERR_INVALID_OBJECT",
	ErrInvalidObjectHandle: "NV_ERR_INVALID_OBJECT_HANDLE", ErrInvalidObjectParent: "NV_ERR_INVALID_OBJECT_PARENT",
	ErrInvalidParamStruct: "NV_ERR_INVALID_PARAM_STRUCT", ErrInvalidState: "NV_ERR_INVALID_STATE",
	ErrNoMemory: "NV_ERR_NO_MEMORY", ErrNotSupported: "NV_ERR_NOT_SUPPORTED",
	ErrObjectNotFound: "NV_ERR_OBJECT_NOT_FOUND", ErrStateInUse: "NV_ERR_STATE_IN_USE", ErrTimeout: "NV_ERR_TIMEOUT",
	ErrGeneric: "NV_ERR_GENERIC",
}

func (s Status) Error() string {
	if n := statusNames[s]; n != "" {
		return n
	}
	return fmt.Sprintf("NV_STATUS 0x%x", uint32(s))
}

// IsGone reports whether err is a Status which means that the client, the object or the
// GPU that a call named no longer exists. ErrInvalidChannel is none: a list of channels is
// refused because of one that was freed.
func IsGone(err error) bool {
	var s Status
	if !errors.As(err, &s) {
		return false
	}
	switch s {
	case ErrInvalidClient, ErrInvalidObjectHandle, ErrObjectNotFound, ErrInvalidObject, ErrGPUIsLost:
		return true
	}
	return false
}
