package discover

import (
	"errors"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/proc"
)

// TestTracedCallsDoNotFillTheKernelLog: traced calls name clients that do not exist, which a
// process can do as often as it likes. None is named in a control, or no more than are guessed.
func TestTracedCallsDoNotFillTheKernelLog(t *testing.T) {
	for name, c := range map[string]struct {
		fault nvrmtest.Fault
		most  int
	}{
		"OwnerOf works":         {nvrmtest.Fault{}, 0},
		"OwnerOf does not work": {nvrmtest.Fault{Status: nvrm.ErrNotSupported}, maxGuessesTotal},
	} {
		t.Run(name, func(t *testing.T) {
			rm, path, _ := mounted(t)
			p := startProcess(t, path)
			made := p.make()
			p.order("open more by 63") // without a client
			w, err := newWatcher(t.Context(), Config{Control: path, NoBPF: true, Only: proc.Everyone})
			if err != nil {
				t.Fatal(err)
			}
			found := make(chan Group, 100)
			go func() {
				for e := range w.events {
					if e.Gone != nil {
						t.Errorf("got %+v gone", *e.Gone)
						continue
					}
					e.Found.File.Close()
					found <- *e.Found
				}
			}()
			defer close(w.events)
			w.tracedSince = 0 // nothing is guessed
			rm.Inject(nvrmtest.Share(), c.fault)
			w.scan(p.PID, []call{{pid: p.PID, fd: 3, client: made.Client, object: made.Compute.Group}}, false)
			if g := <-found; g.Client != made.Client {
				t.Fatalf("got a group of client %v, want %v", g.Client, made.Client)
			}
			before := rm.Logged()
			for burst := range 30 {
				now := time.Now()
				for i := range maxCandidates - 1 {
					// On a descriptor that is not open any more.
					w.noteCall(call{pid: p.PID, fd: 999, client: nvrm.Handle(0xc1d10000 + burst*4 + i), object: 0x5c000001, class: nvrm.ClassSubdevice}, now)
				}
				w.scanDue(now.Add(time.Second))
			}
			if n := rm.Logged() - before; n > c.most {
				t.Errorf("got %d lines in the kernel's log, want at most %d", n, c.most)
			}
			if n := w.WrongGuesses(); n < uint64(rm.Logged()-before) {
				t.Errorf("counted: got %d, want at least %d", n, rm.Logged()-before)
			}
		})
	}
}

// TestOpenDoesNotFillTheKernelLog: the client of a group in the journal was freed. A process has
// many files of the control device, none of which leads to it.
func TestOpenDoesNotFillTheKernelLog(t *testing.T) {
	for name, c := range map[string]struct {
		fault nvrmtest.Fault
		most  int
		gone  bool
	}{
		"OwnerOf works":         {nvrmtest.Fault{}, 0, true},
		"OwnerOf does not work": {nvrmtest.Fault{Status: nvrm.ErrNotSupported}, maxGuesses, false},
	} {
		t.Run(name, func(t *testing.T) {
			rm, path, _ := mounted(t)
			p := startProcess(t, path)
			made := p.make()
			p.order("hold more by 0") // raises the limit of open files
			p.order("open more by 1100")
			info, err := proc.Look(p.PID)
			if err != nil {
				t.Fatal(err)
			}
			rm.Inject(nvrmtest.Share(), c.fault)
			if f, err := Open(Config{Control: path}, info.ID(), Key{made.Client, made.Compute.Group}); err != nil {
				t.Errorf("a group that exists: %v", err)
			} else {
				f.Close()
			}
			before := rm.Logged()
			_, err = Open(Config{Control: path}, info.ID(), Key{made.Client + 77, made.Compute.Group})
			if n := rm.Logged() - before; err == nil || errors.Is(err, hal.ErrGone) != c.gone || n > c.most {
				t.Errorf("got %v and %d lines in the kernel's log; want gone: %v, at most %d lines", err, n, c.gone, c.most)
			}
		})
	}
}
