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

// comeAndGo has clients made and freed.
func comeAndGo(t *testing.T, rm *nvrmtest.RM, n int) {
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

// contexts makes a program, and has others come and go after it, for each of since.
func contexts(t *testing.T, rm *nvrmtest.RM, since ...int) (files []*nvrmtest.File, clients []nvrm.Handle) {
	t.Helper()
	for _, n := range since {
		f := rm.Open()
		t.Cleanup(func() { f.Close() })
		c, err := nvrmtest.NewContext(f)
		if err != nil {
			t.Fatal(err)
		}
		files, clients = append(files, f), append(clients, c.Client)
		comeAndGo(t, rm, n)
	}
	return files, clients
}

// asking is a Watcher that does nothing but find clients.
func asking(rm *nvrmtest.RM) *Watcher {
	w := &Watcher{clients: map[nvrm.Handle]int{}, log: slog.New(slog.DiscardHandler)}
	w.census = census{open: func() (controlFile, error) { return rm.Open(), nil }, within: time.Minute}
	return w
}

// wants has the clients of a descriptor found, and only those.
func (w *Watcher) wants(t *testing.T, f nvrm.Ioctler, want ...nvrm.Handle) {
	t.Helper()
	got, err := w.clientsOf(f)
	if !slices.Equal(got, want) || (err == nil) != (len(want) > 0) || err != nil && !errors.Is(err, nvrm.ErrInvalidClient) {
		t.Errorf("clients %v, %v; want %v", got, err, want)
	}
	for _, c := range got {
		w.clients[c]++
	}
}

// Where RM tells who has a client, each is found wherever it is, in silence, and
// what was asked once is not asked again.
func TestCensus(t *testing.T) {
	for _, test := range []struct {
		name  string
		first nvrm.Handle
		since []int
		most  int // calls
	}{
		{"the first", 0xc1d00000, []int{0}, sweepLeast},
		{"after 300", 0xc1d00000 + 300, []int{0}, sweepLeast},
		{"after 5000", 0xc1d00000 + 5000, []int{0}, 5000},
		{"before 10000", 0xc1d00028, []int{10000}, 10040},
		{"one in many", 0xc1d00000 + 20000, []int{3000, 1, 0, 2000, 700, 5000}, 31000},
		{"where RM counts round", 0xc1dffffe, []int{0, 0, 0, 0, 100}, sweepLeast},
		{"before it did", 0xc1d00000 + nvrm.ClientMask - 1000, []int{500, 1500}, sweepLeast},
	} {
		t.Run(test.name, func(t *testing.T) {
			rm := nvrmtest.New(nvrmtest.Config{FirstClient: test.first})
			files, clients := contexts(t, rm, test.since...)
			w := asking(rm)
			for i, f := range files {
				w.wants(t, f.Copy(), clients[i])
			}
			w.wants(t, rm.Open()) // nobody's
			if n := rm.Calls(nvrmtest.Share()); n > test.most+sweepAgain+100 {
				t.Errorf("%d calls, want no more than %d", n, test.most)
			}
			before := rm.Calls(nvrmtest.Share())
			later, latest := contexts(t, rm, 40, 40)
			w.wants(t, later[1], latest[1])
			w.wants(t, later[0], latest[0])
			if n := rm.Calls(nvrmtest.Share()) - before; n > 2*(80+sweepAgain+20) {
				t.Errorf("%d calls for those that came later", n)
			}
			if rm.Logged() != 0 || w.Guesses() != 0 {
				t.Errorf("%d lines in the kernel's log, %d wrong guesses", rm.Logged(), w.Guesses())
			}
			if n := rm.Clients(); n != len(files)+len(later) {
				t.Errorf("%d clients, want %d: ours are gone again", n, len(files)+len(later))
			}
		})
	}
}

// A descriptor may have more than one client.
func TestTwoClients(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	f := rm.Open()
	defer f.Close()
	one, _ := nvrm.NewClient(f)
	comeAndGo(t, rm, 10)
	two, _ := nvrm.NewClient(f)
	asking(rm).wants(t, f, one, two)
}

// A census that is cut short is gone on with, until every handle was asked about
// once; and begun anew when too many clients came to ask about them all.
func TestCensusIsLong(t *testing.T) {
	far := 3 * sweepMost
	rm := nvrmtest.New(nvrmtest.Config{})
	files, clients := contexts(t, rm, far)
	w := asking(rm)
	w.wants(t, files[0])
	if n := rm.Calls(nvrmtest.Share()); n > sweepMost+10 {
		t.Errorf("%d calls at once", n)
	}
	for news := false; !news; {
		var err error
		if news, err = w.census.goOn(time.Minute); err != nil || w.census.left == 0 {
			t.Fatalf("nothing was found; %v", err)
		}
	}
	w.wants(t, files[0], clients[0])
	for w.census.left > 0 {
		if _, err := w.census.goOn(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if n := rm.Calls(nvrmtest.Share()); n > nvrm.ClientMask+20 {
		t.Errorf("%d calls for %d handles", n, nvrm.ClientMask)
	}
	again, latest := contexts(t, rm, sweepMost+1, 0)
	w.wants(t, again[1], latest[1])
	if w.census.left == 0 {
		t.Error("it was not begun anew")
	}
	if rm.Logged() != 0 || w.Guesses() != 0 {
		t.Errorf("%d lines in the kernel's log, %d wrong guesses", rm.Logged(), w.Guesses())
	}
}

// An update ends in time, and the next tick takes it from there.
func TestCensusIsCutShort(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	files, clients := contexts(t, rm, 1000)
	w := asking(rm)
	w.census.within = 0
	w.wants(t, files[0])
	if n := rm.Calls(nvrmtest.Share()); n > 100 {
		t.Errorf("%d calls in no time", n)
	}
	if news, err := w.census.goOn(time.Minute); !news || err != nil {
		t.Errorf("news: %v, %v", news, err)
	}
	w.wants(t, files[0], clients[0])
}

// RM is not believed when it is wrong about ourselves.
func TestUntold(t *testing.T) {
	for name, fault := range map[string]nvrmtest.Fault{
		"it has no such call": {Errno: 22}, "it does not do it": {Status: nvrm.ErrNotSupported},
		"it says nobody": {Status: nvrm.ErrInvalidObjectHandle}, "it says everybody": {Status: nvrm.ErrObjectNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			rm := nvrmtest.New(nvrmtest.Config{FirstClient: 0xc1d00000 + 5000})
			files, clients := contexts(t, rm, 200, 300, 10)
			rm.Inject(nvrmtest.Share(), fault)
			w := asking(rm)
			for i := range files {
				w.wants(t, files[i], clients[i])
			}
			if n := w.Guesses(); n < uint64(rm.Logged()) || n > 1000 {
				t.Errorf("counted %d wrong guesses, the log has %d", n, rm.Logged())
			}
			w.clients[clients[1]]++
			w.wants(t, files[1], clients[1]) // though thought to be another's
		})
	}
}

// A program next to one that was found is found at once.
func TestGuessNearby(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{FirstClient: 0xc1d00000 + 9000})
	files, clients := contexts(t, rm, 3, 5, 600)
	rm.Inject(nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrNotSupported})
	w := asking(rm)
	w.wants(t, files[1], clients[1])
	for _, i := range []int{2, 0} {
		before := w.Guesses()
		w.wants(t, files[i], clients[i])
		if n := w.Guesses() - before; n > 2*guessNear {
			t.Errorf("%d wrong guesses although the neighbours are known", n)
		}
	}
}

// Guesses are bounded, for one descriptor and for all of them.
func TestGuessesAreBounded(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{FirstClient: 0xc1d00000 + 5000})
	rm.Inject(nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrNotSupported})
	w := asking(rm)
	w.wants(t, rm.Open())
	if n := w.Guesses(); n != guessNewer+guessFirst || n > maxGuesses {
		t.Errorf("%d guesses, want each of %d once", n, guessNewer+guessFirst)
	}
	for range 10 {
		w.wants(t, rm.Open())
	}
	if n := w.Guesses(); n != maxNoise || rm.Logged() > maxNoise {
		t.Errorf("%d guesses, %d lines in the log; want %d", n, rm.Logged(), maxNoise)
	}
}

// Who may not open the control device finds what can be found without.
func TestNoControlFile(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	files, clients := contexts(t, rm, 0)
	w := asking(rm)
	w.census.open = func() (controlFile, error) { return nil, os.ErrPermission }
	w.wants(t, files[0], clients[0])
	if n := w.Guesses(); n != 40 || rm.Logged() != 40 {
		t.Errorf("%d guesses, %d lines; want 40", n, rm.Logged())
	}
}

// A descriptor that answers with something else is not guessed at.
func TestCensusFails(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	files, _ := contexts(t, rm, 0)
	w := asking(rm)
	if err := w.census.update(); err != nil {
		t.Fatal(err)
	}
	rm.Inject(nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrGPUIsLost})
	if got, err := w.clientsOf(files[0]); !errors.Is(err, nvrm.ErrGPUIsLost) || got != nil || w.Guesses() != 0 {
		t.Errorf("%v, %v after %d guesses", got, err, w.Guesses())
	}
}
