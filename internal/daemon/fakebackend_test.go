package daemon

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// fakeBackend is a backend with one sliced device. The state of each queue is a file, so
// that it outlives the daemon, as the state of hardware does.
type fakeBackend struct {
	dir  string
	host hal.Host

	mu     sync.Mutex
	hang   map[int]chan struct{} // by pid: Interrupt waits for it
	refuse map[int]error         // by pid: Interrupt returns it; hal.ErrPartial: and stops the queue
	stuck  map[int]func() error  // by pid: Restore returns its error, unless that is nil
	closed bool
}

func newFakeBackend(dir string) *fakeBackend {
	return &fakeBackend{dir: dir, hang: make(map[int]chan struct{}), stuck: make(map[int]func() error)}
}

// setStuck makes f decide whether the queue of a process can be started; nil: it can.
func (b *fakeBackend) setStuck(pid int, f func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck[pid] = f
}

type fakeDevice struct{}

func (fakeDevice) Info() hal.Info {
	return hal.Info{
		Device:  sched.Device{ID: "fake0", Slice: 2 * time.Millisecond, MinSharedSlice: 100 * time.Microsecond},
		Backend: "fake", Model: "fake device",
	}
}

func (b *fakeBackend) Name() string { return "fake" }

func (b *fakeBackend) Start(_ context.Context, h hal.Host) error {
	b.host = h
	h.DeviceFound(fakeDevice{})
	return nil
}

func (b *fakeBackend) Checks() []hal.Check {
	return []hal.Check{{Name: "fake device", OK: true, Detail: "always there"}}
}

func (b *fakeBackend) Close() error { b.closed = true; return nil }

// Adopt implements hal.Adopter.
func (b *fakeBackend) Adopt(_ json.RawMessage, fd int) (hal.Queue, error) {
	return &fakeQueue{b: b, f: os.NewFile(uintptr(fd), "queue")}, nil
}

// Reopen implements hal.Reopener.
func (b *fakeBackend) Reopen(p proc.ID, _ json.RawMessage) (hal.Queue, error) {
	if now, err := proc.System.Stat(p.PID); err != nil || now.Start != p.Start {
		return nil, hal.ErrGone
	}
	f, err := os.OpenFile(filepath.Join(b.dir, fmt.Sprint(p.PID)), os.O_RDWR, 0)
	return &fakeQueue{b: b, f: f, pid: p.PID}, err
}

// Find implements hal.Finder: a process with a file "pending-PID" has a queue soon.
func (b *fakeBackend) Find(pid int) hal.Found {
	if _, err := os.Stat(filepath.Join(b.dir, fmt.Sprint("pending-", pid))); err == nil {
		if p, err := proc.Look(pid); err == nil {
			return hal.Found{Pending: &p}
		}
	}
	return hal.Found{Note: "the fake backend does not know it"}
}

// offer offers a queue of a process.
func (b *fakeBackend) offer(p proc.Process) (hal.QueueHandle, error) {
	f, err := os.OpenFile(filepath.Join(b.dir, fmt.Sprint(p.PID)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	q := &fakeQueue{b: b, f: f, pid: p.PID}
	return b.host.QueueFound(hal.Offer{
		Process: p, Device: fakeDevice{}, Attach: func(hal.Queue) (hal.Queue, error) { return q, nil },
		Handoff: &hal.Handoff{State: "any", FD: int(f.Fd())},
	})
}

// fakeQueue is a queue whose slice is at offset 0 of a file, whose level of stopping is at
// offset 8, and how often it was started, by any daemon, at offset 16.
type fakeQueue struct {
	b   *fakeBackend
	f   *os.File
	pid int
}

func (q *fakeQueue) put(at int64, v uint64) error {
	_, err := q.f.WriteAt(binary.LittleEndian.AppendUint64(nil, v), at)
	return err
}

func (q *fakeQueue) SetSlice(d time.Duration) error { return q.put(0, uint64(d)) }

func (q *fakeQueue) Interrupt() error {
	q.b.mu.Lock()
	hang, refused := q.b.hang[q.pid], q.b.refuse[q.pid]
	q.b.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if refused != nil {
		if errors.Is(refused, hal.ErrPartial) {
			_ = q.put(8, 1)
		}
		return refused
	}
	return q.put(8, 1)
}

func (q *fakeQueue) Restore() error {
	q.b.mu.Lock()
	stuck := q.b.stuck[q.pid]
	q.b.mu.Unlock()
	if stuck != nil {
		if err := stuck(); err != nil {
			return err
		}
	}
	if err := q.put(8, 0); err != nil {
		return err
	}
	var starts [8]byte
	_, _ = q.f.ReadAt(starts[:], 16) // the file may be shorter: none yet
	return q.put(16, binary.LittleEndian.Uint64(starts[:])+1)
}

func (q *fakeQueue) Abandon() error { return q.f.Close() }
func (q *fakeQueue) Close() error   { return errors.Join(q.SetSlice(0), q.Restore(), q.f.Close()) }

// hardware is the state of a queue as the fake device has it.
type hardware struct {
	slice   time.Duration
	stopped bool
}

func (b *fakeBackend) hardware(pid int) hardware {
	text, _ := os.ReadFile(filepath.Join(b.dir, fmt.Sprint(pid)))
	text = append(text, make([]byte, 16)...)
	return hardware{time.Duration(binary.LittleEndian.Uint64(text)), binary.LittleEndian.Uint64(text[8:]) != 0}
}

// starts returns how often a queue was started, and whether it is running now.
func (b *fakeBackend) starts(pid int) (n uint64, running bool) {
	text, _ := os.ReadFile(filepath.Join(b.dir, fmt.Sprint(pid)))
	text = append(text, make([]byte, 24)...)
	return binary.LittleEndian.Uint64(text[16:]), binary.LittleEndian.Uint64(text[8:]) == 0
}

// newTestDaemon makes a daemon with the given backends and a real guardian.
func newTestDaemon(backends ...hal.Backend) *Daemon {
	d, err := New(Config{
		File:     config.Config{Policy: api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}}},
		Guardian: []string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]},
		Backends: backends,
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	return d
}

// runDaemon runs a daemon until stop is called.
func runDaemon(t testing.TB, d *Daemon) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	<-d.ready
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// sleeper starts a process that does nothing, to have a pid that is alive.
func sleeper(t testing.TB) (proc.Process, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := proc.Look(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p, cmd
}

// mustOffer offers a queue of a process and fails the test if it is refused.
func (b *fakeBackend) mustOffer(t testing.TB, p proc.Process) hal.QueueHandle {
	t.Helper()
	q, err := b.offer(p)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

var eventually = drivertest.Eventually
