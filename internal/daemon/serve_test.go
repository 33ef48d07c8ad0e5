package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/hal"
)

// serveLogged runs Serve without devices until end is called, and returns its log.
func serveLogged(t *testing.T, files []string, during func(log *lockedBuffer), cause error) string {
	t.Helper()
	dir := journalDir(t)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var log lockedBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, Options{
			Socket: filepath.Join(dir, "s"), Guardian: []string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]}, DeviceFiles: files,
			Backends: func(config.Config, int, *slog.Logger) ([]hal.Backend, []hal.Check, error) { return nil, nil, nil },
			Log:      slog.New(slog.NewTextHandler(&log, nil)),
		})
	}()
	eventually(t, "the daemon runs", func() bool { return strings.Contains(log.String(), "daemon is running") })
	during(&log)
	cancel(cause)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return log.String()
}

// TestListenErrorsSayWhatToDo: errors of listening name the socket as the user did, and a remedy.
func TestListenErrorsSayWhatToDo(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	for _, c := range []struct {
		socket string
		config config.Config
		want   string
	}{
		{"/proc/x.sock", config.Config{}, "listen on /proc/x.sock: make /proc/x.sock.lock: no such file or directory; name a socket in a folder of your own with --socket"},
		{filepath.Join(t.TempDir(), "s"), config.Config{TCP: used.Addr().String(), TokenFile: token}, "address already in use; stop the program that uses it, or set tcp"},
	} {
		err := Serve(t.Context(), Options{
			Socket: c.socket, Config: c.config, Log: slog.New(slog.DiscardHandler),
			Backends: func(config.Config, int, *slog.Logger) ([]hal.Backend, []hal.Check, error) { return nil, nil, nil },
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q in it", err, c.want)
		}
	}
}

// TestEndIsLogged: the log has one line of why the daemon ended.
func TestEndIsLogged(t *testing.T) {
	log := serveLogged(t, nil, func(*lockedBuffer) {}, errors.New("terminated signal received"))
	if strings.Count(log, `msg="daemon ends and undoes its changes" reason="terminated signal received"`) != 1 {
		t.Errorf("got\n%s\nwant one line with the reason", log)
	}
}

// TestMissingDeviceIsLogged: a daemon on a machine without a device says so, once, with what to
// do. A simulator's devices have no files.
func TestMissingDeviceIsLogged(t *testing.T) {
	there := filepath.Join(t.TempDir(), "nvidiactl")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		files []string
		want  int
	}{
		{[]string{"/no/nvidiactl", "/no/kfd"}, 1},
		{[]string{"/no/nvidiactl", there}, 0},
		{nil, 0},
	} {
		log := serveLogged(t, c.files, func(log *lockedBuffer) {
			if c.want > 0 {
				eventually(t, "the warning is logged", func() bool { return strings.Contains(log.String(), "level=WARN") })
			}
		}, nil)
		if got := strings.Count(log, `msg="daemon has no device to schedule" reason="no device was found: there is no /no/nvidiactl and no /no/kfd" todo="load the GPU's driver`); got != c.want {
			t.Errorf("%v: got %d warnings, want %d\n%s", c.files, got, c.want, log)
		}
		if check := DeviceCheck(c.files); check.OK != (c.want == 0) {
			t.Errorf("%v: doctor got %+v", c.files, check)
		}
	}
}
