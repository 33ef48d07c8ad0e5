package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// What systemd is told (sd_notify(3)).
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	alive    = "WATCHDOG=1"
)

// Notify tells systemd how the daemon is. Without systemd it does nothing.
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

// Watchdog is how often systemd wants a sign of life before it takes the daemon
// for dead; zero if it does not.
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

// KeepAlive gives systemd its signs of life until ctx is done, each time that
// well says all is well. It returns at once where none are wanted.
func KeepAlive(ctx context.Context, well func() bool) {
	every := Watchdog()
	if every == 0 {
		return
	}
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		if well() {
			_ = Notify(alive) // a lost one is made good by the next
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
