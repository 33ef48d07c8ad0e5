package guardian

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// fileQueue is a queue whose state is a file, so that it outlives whoever holds
// a descriptor of it: the slice at 0, and at 8 whether it is off.
type fileQueue struct{ f *os.File }

func (q fileQueue) put(at int64, v uint64) error {
	_, err := q.f.WriteAt(binary.LittleEndian.AppendUint64(nil, v), at)
	return err
}

func (q fileQueue) get(at int64) uint64 {
	b := make([]byte, 8)
	_, _ = q.f.ReadAt(b, at)
	return binary.LittleEndian.Uint64(b)
}

func (q fileQueue) SetSlice(d time.Duration) error { return q.put(0, uint64(d)) }
func (q fileQueue) Interrupt() error               { return q.put(8, 1) }
func (q fileQueue) Restore() error                 { return q.put(8, 0) }
func (q fileQueue) Abandon() error                 { return q.f.Close() }
func (q fileQueue) Close() error                   { return q.f.Close() }

func adoptFile(_ json.RawMessage, fd int) (hal.Queue, error) {
	return fileQueue{os.NewFile(uintptr(fd), "queue")}, nil
}

func TestMain(m *testing.M) {
	switch os.Getenv("GUARDIAN_TEST") {
	case "guardian":
		if err := Keep(3, adoptFile, slog.New(slog.DiscardHandler)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "daemon":
		reckless(os.Args[1], os.Args[2])
	}
	os.Exit(m.Run())
}

func startGuardian() (*Guardian, error) {
	_ = os.Setenv("GUARDIAN_TEST", "guardian")
	return Start(os.Args[0])
}

// reckless is a daemon that changes queues as fast as it can until it is killed.
func reckless(dir, seed string) {
	g, err := startGuardian()
	if err != nil {
		panic(err)
	}
	n, _ := strconv.ParseUint(seed, 10, 64)
	r := rand.New(rand.NewPCG(n, 1))
	queues := make([]fileQueue, 4)
	for i := range queues {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(i)), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			panic(err)
		}
		queues[i] = fileQueue{f}
		if err := g.Adopt(sched.QueueID(i+1), struct{}{}, int(f.Fd())); err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	for {
		i := r.IntN(len(queues))
		a := sched.Action{Queue: sched.QueueID(i + 1), Verb: sched.Stop, Level: sched.LevelInterrupt}
		switch off := queues[i].get(8) == 1; {
		case r.IntN(2) == 0:
			a = sched.Action{Queue: a.Queue, Verb: sched.SetSlice, Slice: []time.Duration{0, sched.MinSlice}[r.IntN(2)]}
		case off:
			a.Verb = sched.Start
		}
		if g.Begin(a) != nil {
			panic("no guardian")
		}
		err := hal.Do(queues[i], a)
		_ = g.End(a, hal.Outcome(err))
	}
}

// TestNothingStaysChangedWhenTheDaemonIsKilled kills a daemon in the middle of
// its work, again and again: soon everything is as it was. (Within a second, on a
// machine that is not busy with other tests.)
func TestNothingStaysChangedWhenTheDaemonIsKilled(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	for seed := range rounds {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], dir, strconv.Itoa(seed))
		cmd.Env = append(os.Environ(), "GUARDIAN_TEST=daemon")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = out.Read(make([]byte, 8)) // ready
		time.Sleep(time.Duration(seed*seed%37) * time.Millisecond / 4)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if bad := changedFor(dir, 5*time.Second); bad != "" {
			t.Errorf("seed %d: long after the daemon was killed %s", seed, bad)
		}
	}
}

// changedFor waits until nothing in dir is changed, for at most so long, and
// tells what is then.
func changedFor(dir string, most time.Duration) (bad string) {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		bad = ""
		for i := range 4 {
			text, _ := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
			text = append(text, make([]byte, 16)...)
			slice, off := binary.LittleEndian.Uint64(text), binary.LittleEndian.Uint64(text[8:])
			if slice != 0 || off != 0 {
				bad += fmt.Sprintf("queue %d has slice %d and off %d; ", i+1, slice, off)
			}
		}
		if bad == "" {
			return ""
		}
	}
	return bad
}

// vanish closes our end without a farewell, as death does.
func (g *Guardian) vanish() { _ = unix.Close(g.fd); g.fd = -1 }

// trial is a guardian with one queue that was sliced and stopped.
func trial(t *testing.T) (*Guardian, fileQueue) {
	t.Helper()
	g, err := startGuardian()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "q"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	q := fileQueue{f}
	t.Cleanup(func() { f.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(g.Adopt(1, struct{}{}, int(f.Fd())))
	for _, a := range []sched.Action{
		{Queue: 1, Verb: sched.SetSlice, Slice: sched.MinSlice}, {Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt},
	} {
		must(g.Begin(a))
		must(hal.Do(q, a))
		must(g.End(a, sched.Done))
	}
	return g, q
}

func TestFarewell(t *testing.T) {
	g, q := trial(t)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if q.get(0) != uint64(sched.MinSlice) || q.get(8) != 1 {
		t.Error("a guardian that was taken leave of undid something")
	}
}

func TestForgottenQueuesAreLeftAlone(t *testing.T) {
	g, q := trial(t)
	if err := g.Forget(1); err != nil {
		t.Fatal(err)
	}
	g.vanish()
	<-g.Gone()
	if q.get(0) != uint64(sched.MinSlice) {
		t.Error("a queue that was forgotten was changed")
	}
}

func TestDeathIsUndone(t *testing.T) {
	g, q := trial(t)
	g.vanish()
	<-g.Gone()
	if q.get(0) != 0 || q.get(8) != 0 {
		t.Errorf("slice %d, off %d", q.get(0), q.get(8))
	}
}

// TestSendingToADeadGuardianFails: then nothing may be changed.
func TestSendingToADeadGuardianFails(t *testing.T) {
	g, _ := trial(t)
	_ = g.cmd.Process.Kill()
	<-g.Gone()
	if err := g.Begin(sched.Action{Queue: 1, Verb: sched.Stop}); err == nil {
		t.Error("a guardian that has died took a message")
	}
}
