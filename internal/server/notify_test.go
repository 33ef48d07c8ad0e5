package server

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify(Ready); err != nil {
		t.Errorf("without systemd: got %v", err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	next := func() string {
		buf := make([]byte, 100)
		_ = l.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := l.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	t.Setenv("NOTIFY_SOCKET", path)
	for _, state := range []string{Ready, Stopping} {
		if err := Notify(state); err != nil || next() != state {
			t.Errorf("%s: got %v", state, err)
		}
	}
	t.Setenv("WATCHDOG_USEC", "30000")
	ctx, cancel := context.WithCancel(t.Context())
	var healthy atomic.Bool
	healthy.Store(true)
	done := make(chan struct{})
	go func() { defer close(done); KeepAlive(ctx, healthy.Load) }()
	for range 3 {
		if got := next(); got != "WATCHDOG=1" {
			t.Errorf("got %q, want WATCHDOG=1", got)
		}
	}
	cancel()
	<-done
	t.Setenv("NOTIFY_SOCKET", path+"x")
	if err := Notify(Ready); err == nil {
		t.Error("a missing socket caused no error")
	}
}

func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"", "", 0},
		{"x", "", 0},
		{"-5", "", 0},
		{"99999999999999999", "", 0},
		{"2000000", "", 2 * time.Second},
		{"2000000", "1", 0}, // of another process
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got := Watchdog(); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
