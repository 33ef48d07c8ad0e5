package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// States that systemd is notified of: see sd_notify(3).
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	alive    = "WATCHDOG=1"
)

// Notify tells systemd the state of the daemon. Without systemd it does nothing.
func Notify(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	// net takes a leading @ for the abstract namespace, as systemd writes it.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // a unix socket has deadlines
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// Watchdog returns the time after which systemd takes a silent daemon for dead; zero if
// systemd does not watch it.
func Watchdog() time.Duration {
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || us <= 0 || us > int64(time.Hour/time.Microsecond)*24 {
		return 0
	}
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

// KeepAlive notifies systemd that the daemon is alive, three times in each Watchdog
// period, as long as healthy returns true, until ctx is done. It returns at once if
// systemd does not watch the daemon.
func KeepAlive(ctx context.Context, healthy func() bool) {
	every := Watchdog()
	if every == 0 {
		return
	}
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		if healthy() {
			_ = Notify(alive) // the next one makes up for a lost one
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
