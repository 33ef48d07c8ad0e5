package discover

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
)

// churnClients makes n clients and frees them.
func churnClients(t *testing.T, rm *nvrmtest.RM, n int) {
	t.Helper()
	f := rm.Open()
	defer f.Close()
	for range n {
		c, err := nvrm.NewClient(f)
		if err == nil {
			err = nvrm.Free(f, c, 0, c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// makeContexts makes a context for each number of since, followed by that many clients that
// are made and freed.
func makeContexts(t *testing.T, rm *nvrmtest.RM, since ...int) (files []*nvrmtest.File, clients []nvrm.Handle) {
	t.Helper()
	for _, n := range since {
		f := rm.Open()
		t.Cleanup(func() { f.Close() })
		c, err := nvrmtest.NewContext(f)
		if err != nil {
			t.Fatal(err)
		}
		files, clients = append(files, f), append(clients, c.Client)
		churnClients(t, rm, n)
	}
	return files, clients
}

// newClientFinder returns a Watcher that is used for clientsOf only.
func newClientFinder(rm *nvrmtest.RM) *Watcher {
	w := &Watcher{knownClients: map[nvrm.Handle]int{}, log: slog.New(slog.DiscardHandler)}
	w.allClients = clientList{open: func() (controlFile, error) { return rm.Open(), nil }, budget: time.Minute}
	return w
}

// wantClients checks the clients that are found for a descriptor.
func (w *Watcher) wantClients(t *testing.T, f nvrm.Ioctler, want ...nvrm.Handle) {
	t.Helper()
	got, err := w.clientsOf(f)
	if !slices.Equal(got, want) || (err == nil) != (len(want) > 0) || err != nil && !errors.Is(err, nvrm.ErrInvalidClient) {
		t.Errorf("clients: got %v, %v; want %v", got, err, want)
	}
	for _, c := range got {
		w.knownClients[c]++
	}
}

// TestClientsAreListed checks that clients are found wherever RM's counter is, without a line
// in the kernel's log, and that no handle is asked about twice.
func TestClientsAreListed(t *testing.T) {
	for _, test := range []struct {
		name  string
		first nvrm.Handle
		since []int
		most  int // calls
	}{
		{"first client", 0xc1d00000, []int{0}, minAsk},
		{"after 300 others", 0xc1d00000 + 300, []int{0}, minAsk},
		{"after 5000 others", 0xc1d00000 + 5000, []int{0}, 5000},
		{"before 10000 others", 0xc1d00028, []int{10000}, 10040},
		{"several among many", 0xc1d00000 + 20000, []int{3000, 1, 0, 2000, 700, 5000}, 31000},
		{"while the counter wraps", 0xc1dffffe, []int{0, 0, 0, 0, 100}, minAsk},
		{"before the counter wrapped", 0xc1d00000 + nvrm.ClientMask - 1000, []int{500, 1500}, minAsk},
	} {
		t.Run(test.name, func(t *testing.T) {
			rm := nvrmtest.New(nvrmtest.Config{FirstClient: test.first})
			files, clients := makeContexts(t, rm, test.since...)
			w := newClientFinder(rm)
			for i, f := range files {
				w.wantClients(t, f.Copy(), clients[i])
			}
			w.wantClients(t, rm.Open()) // a file without a client
			if n := rm.Calls(nvrmtest.Share()); n > test.most+askAgain+100 {
				t.Errorf("calls: got %d, want at most %d", n, test.most)
			}
			before := rm.Calls(nvrmtest.Share())
			later, latest := makeContexts(t, rm, 40, 40)
			w.wantClients(t, later[1], latest[1])
			w.wantClients(t, later[0], latest[0])
			if n := rm.Calls(nvrmtest.Share()) - before; n > 2*(80+askAgain+20) {
				t.Errorf("calls for two later clients: got %d", n)
			}
			if rm.Logged() != 0 || w.WrongGuesses() != 0 {
				t.Errorf("got %d log lines and %d wrong guesses, want none", rm.Logged(), w.WrongGuesses())
			}
			if n := rm.Clients(); n != len(files)+len(later) {
				t.Errorf("clients: got %d, want %d; ours must be freed", n, len(files)+len(later))
			}
		})
	}
}

// TestDescriptorWithTwoClients checks that both clients of a descriptor are found.
func TestDescriptorWithTwoClients(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	f := rm.Open()
	defer f.Close()
	one, _ := nvrm.NewClient(f)
	churnClients(t, rm, 10)
	two, _ := nvrm.NewClient(f)
	newClientFinder(rm).wantClients(t, f, one, two)
}

// TestClientListIsResumed checks that an update which reaches its limit is resumed until
// every handle was asked about once, and started again after too many new clients.
func TestClientListIsResumed(t *testing.T) {
	far := 3 * maxAsk
	rm := nvrmtest.New(nvrmtest.Config{})
	files, clients := makeContexts(t, rm, far)
	w := newClientFinder(rm)
	w.wantClients(t, files[0])
	if n := rm.Calls(nvrmtest.Share()); n > maxAsk+10 {
		t.Errorf("calls of the first update: got %d, want at most %d", n, maxAsk)
	}
	for found := false; !found; {
		var err error
		if found, err = w.allClients.resume(time.Minute); err != nil || w.allClients.remaining == 0 {
			t.Fatalf("the client was not found: %v", err)
		}
	}
	w.wantClients(t, files[0], clients[0])
	for w.allClients.remaining > 0 {
		if _, err := w.allClients.resume(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if n := rm.Calls(nvrmtest.Share()); n > nvrm.ClientMask+20 {
		t.Errorf("calls: got %d, want at most one for each of %d handles", n, nvrm.ClientMask)
	}
	again, latest := makeContexts(t, rm, maxAsk+1, 0)
	w.wantClients(t, again[1], latest[1])
	if w.allClients.remaining == 0 {
		t.Error("the list was not started again")
	}
	if rm.Logged() != 0 || w.WrongGuesses() != 0 {
		t.Errorf("got %d log lines and %d wrong guesses, want none", rm.Logged(), w.WrongGuesses())
	}
}

// TestUpdateKeepsItsBudget checks that an update ends in time and is resumed later.
func TestUpdateKeepsItsBudget(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	files, clients := makeContexts(t, rm, 1000)
	w := newClientFinder(rm)
	w.allClients.budget = 0
	w.wantClients(t, files[0])
	if n := rm.Calls(nvrmtest.Share()); n > 100 {
		t.Errorf("calls without a budget: got %d, want at most 100", n)
	}
	if found, err := w.allClients.resume(time.Minute); !found || err != nil {
		t.Errorf("resume: got %v, %v; want true", found, err)
	}
	w.wantClients(t, files[0], clients[0])
}

// TestManyClientsAreListedInTime checks that a list of very many clients is kept up to date in a
// time that does not grow with their square.
func TestManyClientsAreListedInTime(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	w := newClientFinder(rm)
	c := &w.allClients
	if err := c.update(); err != nil {
		t.Fatal(err)
	}
	for i := range 1 << 18 {
		c.add(nvrm.Handle(0xc1d40000 + i))
	}
	files, clients := makeContexts(t, rm, 0)
	began := time.Now()
	if err := c.update(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("an update with %d clients took %v", len(c.handles), took)
	}
	w.wantClients(t, files[0], clients[0])
	if n := len(c.handles); n != 1 || len(c.listed) != n {
		t.Errorf("%d clients are listed, %d of them in the set; want the one that exists", n, len(c.listed))
	}
}

// TestClientsOfADescriptorAreFoundInTime checks that a descriptor for which very many clients
// must be asked about is not asked about for longer than its time, and that the next attempts go
// on until its client is found.
func TestClientsOfADescriptorAreFoundInTime(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	files, clients := makeContexts(t, rm, 0)
	w := newClientFinder(rm)
	others := rm.Open()
	defer others.Close()
	for range 1000 {
		if _, err := nvrm.NewClient(others); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.allClients.update(); err != nil {
		t.Fatal(err)
	}
	before := rm.Calls(nvrmtest.Share())
	for attempts := 1; ; attempts++ {
		got, err := w.allClients.filterOwned(files[0], time.Now()) // the time is over at once
		if n := rm.Calls(nvrmtest.Share()) - before; n > 64*attempts {
			t.Fatalf("calls of %d attempts: got %d, want at most 64 each", attempts, n)
		}
		if err == nil {
			if !slices.Equal(got, clients) || len(w.allClients.handles) != 1001 || attempts < 10 {
				t.Errorf("attempt %d: got %v of %d clients, want %v of 1001 after many attempts", attempts, got, len(w.allClients.handles), clients)
			}
			return
		}
		if !errors.Is(err, errUnfinished) || attempts > 20 {
			t.Fatalf("attempt %d: %v", attempts, err)
		}
	}
}

// TestWrongOwnersAreNotTrusted checks that handles are guessed if OwnerOf is wrong about a
// client of ours.
func TestWrongOwnersAreNotTrusted(t *testing.T) {
	for name, fault := range map[string]nvrmtest.Fault{
		"unknown call": {Errno: 22}, "not supported": {Status: nvrm.ErrNotSupported},
		"always no owner": {Status: nvrm.ErrInvalidObjectHandle}, "always this file": {Status: nvrm.ErrObjectNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			rm := nvrmtest.New(nvrmtest.Config{FirstClient: 0xc1d00000 + 5000})
			files, clients := makeContexts(t, rm, 200, 300, 10)
			rm.Inject(nvrmtest.Share(), fault)
			w := newClientFinder(rm)
			for i := range files {
				w.wantClients(t, files[i], clients[i])
			}
			if n := w.WrongGuesses(); n < uint64(rm.Logged()) || n > 1000 {
				t.Errorf("wrong guesses: got %d, want at least the %d log lines and at most 1000", n, rm.Logged())
			}
			w.knownClients[clients[1]]++
			w.wantClients(t, files[1], clients[1]) // also if another descriptor is thought to own it
		})
	}
}

// TestNeighboursAreGuessedFirst checks that a client next to a known one is found with few
// guesses.
func TestNeighboursAreGuessedFirst(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{FirstClient: 0xc1d00000 + 9000})
	files, clients := makeContexts(t, rm, 3, 5, 600)
	rm.Inject(nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrNotSupported})
	w := newClientFinder(rm)
	w.wantClients(t, files[1], clients[1])
	for _, i := range []int{2, 0} {
		before := w.WrongGuesses()
		w.wantClients(t, files[i], clients[i])
		if n := w.WrongGuesses() - before; n > 2*guessNear {
			t.Errorf("wrong guesses next to a known client: got %d, want at most %d", n, 2*guessNear)
		}
	}
}

// TestGuessesAreLimited checks the limits for one descriptor and for all.
func TestGuessesAreLimited(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{FirstClient: 0xc1d00000 + 5000})
	rm.Inject(nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrNotSupported})
	w := newClientFinder(rm)
	w.wantClients(t, rm.Open())
	if n := w.WrongGuesses(); n != guessNewer+guessFirst || n > maxGuesses {
		t.Errorf("guesses for one descriptor: got %d, want %d", n, guessNewer+guessFirst)
	}
	for range 10 {
		w.wantClients(t, rm.Open())
	}
	if n := w.WrongGuesses(); n != maxGuessesTotal || rm.Logged() > maxGuessesTotal {
		t.Errorf("got %d guesses and %d log lines, want %d", n, rm.Logged(), maxGuessesTotal)
	}
}

// TestClientsAreGuessedWithoutControlFile checks that clients are guessed if the control
// device may not be opened.
func TestClientsAreGuessedWithoutControlFile(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	files, clients := makeContexts(t, rm, 0)
	w := newClientFinder(rm)
	w.allClients.open = func() (controlFile, error) { return nil, os.ErrPermission }
	w.wantClients(t, files[0], clients[0])
	if n := w.WrongGuesses(); n != 40 || rm.Logged() != 40 {
		t.Errorf("got %d guesses and %d log lines, want 40", n, rm.Logged())
	}
}

// TestOtherErrorsAreNotGuessedAbout checks that an error of another kind is returned.
func TestOtherErrorsAreNotGuessedAbout(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	files, _ := makeContexts(t, rm, 0)
	w := newClientFinder(rm)
	if err := w.allClients.update(); err != nil {
		t.Fatal(err)
	}
	rm.Inject(nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrGPUIsLost})
	if got, err := w.clientsOf(files[0]); !errors.Is(err, nvrm.ErrGPUIsLost) || got != nil || w.WrongGuesses() != 0 {
		t.Errorf("got %v, %v after %d guesses; want NV_ERR_GPU_IS_LOST and no guess", got, err, w.WrongGuesses())
	}
}
