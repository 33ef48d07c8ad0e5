//go:build !linux

package pageclient

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// lodging is never had here: daemons run on Linux.
type lodging struct {
	page  *page
	board *board
	users int
	over  bool
}

func dial(context.Context) (*lodging, error) { return nil, errors.New("giveway runs on Linux only") }

func (*lodging) untilOver() {}
func (*lodging) ring()      {}
func (*lodging) close()     {}

func wait(*atomic.Uint32, uint32, time.Duration) {}
func wakeAll(*atomic.Uint32)                     {}

func machineClock() uint64 { return 0 }
