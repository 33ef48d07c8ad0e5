//go:build !linux

package client

import (
	"errors"
	"net"
)

// peerUser does not exist on this system: the daemon runs on Linux only.
func peerUser(*net.UnixConn) (uint32, error) { return 0, errors.New("giveway runs on Linux only") }
