package daemon

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
)

var (
	soakFor  = flag.Duration("soak", 0, "how long TestSoak runs; zero: 10 s")
	soakSeed = flag.Uint64("seed", 0, "of TestSoak; zero: a random one")
)

// TestSoak runs a daemon for a long time. It has simulated devices, queues whose state
// outlives it, and real programs with the shim that use OpenCL. Processes of all kinds are
// killed, the daemon's front ends too, and orders are given at random moments. Every second it checks what the daemon
// promises: see soak.check. The end of the output is a table of figures.
func TestSoak(t *testing.T) {
	if testing.Short() && *soakFor == 0 {
		t.Skip("-short: it takes 20 s; make soak runs it for longer")
	}
	s := newSoak(t, cmp.Or(*soakSeed, rand.Uint64()>>16))
	length := cmp.Or(*soakFor, 10*time.Second)
	t.Logf("seed %d, for %v", s.seed, length)
	fmt.Printf("soak: seed %d, for %v\n", s.seed, length)
	s.startDaemon()
	var busy sync.WaitGroup
	for i := range soakPrograms {
		busy.Go(func() { s.runPrograms(i) })
	}
	for range soakSleepers {
		s.startSleeper()
	}
	busy.Go(s.watchLease)
	s.run(length)
	close(s.over)
	s.finish(&busy)
	fmt.Print(s.table())
	if len(s.violations) > 0 {
		t.Errorf("seed %d: %d violations:\n%s\nlast events:\n%s", s.seed, len(s.violations), strings.Join(s.violations, "\n\n"), strings.Join(s.events, "\n"))
	}
}

// soak is a run of TestSoak.
type soak struct {
	t                 *testing.T
	seed              uint64
	r                 *rand.Rand // of the main goroutine
	began             time.Time
	dir               string
	giveway           string // the program
	opencl            string // the OpenCL program; empty: there is no OpenCL
	client            *client.Client
	over              chan struct{} // closed when no program is started any more
	daemon            *soakDaemon
	sleepers          []*soakProcess
	resumes           map[int]time.Time // by pid: when a paused process is resumed
	lastMark          map[string]progress
	lastProgressCheck time.Time
	shims             map[string]api.Shim // of the programs, when they were last checked

	calm, calmEnd time.Time // of the next calm, or the present one
	isCalm        bool
	nextKill      time.Time

	frontEndKilled time.Time // the last one
	config         int       // of soakConfigs: the last one that the daemon accepts
	reloaded       time.Time // when the daemon was last told to read its file again

	mu         sync.Mutex
	programs   [soakPrograms]*soakProgram // nil: none runs at present
	events     []string                   // the last ones
	violations []string
	figures    soakFigures
}

// How many OpenCL programs run at once, and how many processes have a queue whose state
// outlives the daemon.
const (
	soakPrograms = 3
	soakSleepers = 3
)

// maxEvents is how many of the last events a failure prints.
const maxEvents = 60

// event records what was done, for the output of a failure.
func (s *soak) event(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addEvent(fmt.Sprintf(format, args...))
}

func (s *soak) addEvent(text string) {
	if len(s.events) == maxEvents {
		s.events = s.events[1:]
	}
	s.events = append(s.events, fmt.Sprintf("%8.3fs %s", time.Since(s.began).Seconds(), text))
}

// violation records that a promise was broken. The first ones are kept.
func (s *soak) violation(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	s.addEvent("VIOLATION: " + text)
	s.figures.violations++
	if len(s.violations) < 20 {
		recent := strings.Join(s.events[max(len(s.events)-12, 0):], "\n")
		s.violations = append(s.violations, recent)
		fmt.Printf("soak: after these events:\n%s\n", recent)
	}
}

// run disturbs and checks for the given time.
func (s *soak) run(length time.Duration) {
	check, report := time.Now(), time.Now()
	disturb := time.Now().Add(3 * time.Second)
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		now := time.Now()
		if now.After(disturb) {
			disturb = s.disturb()
		}
		if now.After(check) {
			s.check()
			check = now.Add(time.Second)
		}
		if now.After(report) {
			fmt.Printf("soak: %5.0fs of %v: %s\n", time.Since(s.began).Seconds(), length, s.figures.line(&s.mu))
			report = now.Add(10 * time.Second)
		}
	}
}
