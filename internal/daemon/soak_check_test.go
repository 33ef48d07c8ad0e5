package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/stats"
)

// Limits of the checks.
const (
	// maxWait is how long a process may make no progress that is neither paused nor of
	// class idle, beside the time in which it waited for a CPU. The floor gives it its share in
	// any 5 s; the check looks once a second.
	maxWait = 8 * time.Second
	// warmUp is how long after its start a daemon uses all that it should but for its record, which
	// fills.
	warmUp = 15 * time.Second
	// maxUndo is how long the guardian may take.
	maxUndo = 5 * time.Second
	// frontEndTime is how long a front end may be missing that was killed: the pause before it is
	// started again doubles up to 5 s.
	frontEndTime = 10 * time.Second
)

// soakFigures are what the table shows. soak.mu guards them.
type soakFigures struct {
	programs, finished, killedPrograms     int
	daemonKills, childKills, takeovers     int
	frontEndKills, lostCalls               int
	journalReads, journalChanges           int // checks that read the journal; queues that were changed in them
	violations, checks                     int
	calls                                  latencies
	longestWait                            time.Duration
	longestUndo                            time.Duration
	leftChanged                            int // queues that were changed when a daemon was killed
	keptProcesses, keptPolicies            int // that the next daemon had to have as the last one had them
	lapses, machineStalls                  int
	shortestLease                          time.Duration
	overruns, late                         uint64
	maxDaemonFDs, maxChildFDs              int
	maxDaemonKB, maxChildKB, maxGoroutines int
}

type latencies struct{ all []time.Duration }

// add keeps a latency. Of very many, every other is dropped.
func (l *latencies) add(d time.Duration) {
	l.all = append(l.all, d)
	if len(l.all) > 1<<16 {
		for i := range len(l.all) / 2 {
			l.all[i] = l.all[2*i]
		}
		l.all = l.all[:len(l.all)/2]
	}
}

func (l *latencies) String() string {
	if len(l.all) == 0 {
		return "none"
	}
	q := func(p float64) time.Duration { return l.quantile(p).Round(10 * time.Microsecond) }
	return fmt.Sprintf("%d calls, P50 %v, P99 %v, P99.9 %v, longest %v", len(l.all), q(0.5), q(0.99), q(0.999), q(1))
}

// quantile returns a quantile; zero if there are no latencies.
func (l *latencies) quantile(p float64) time.Duration {
	if len(l.all) == 0 {
		return 0
	}
	return stats.Quantile(slices.Sorted(slices.Values(l.all)), p)
}

func (f *soakFigures) line(mu *sync.Mutex) string {
	mu.Lock()
	defer mu.Unlock()
	return fmt.Sprintf("%d programs, %d finished, %d killed; %d daemon kills, %d of children; longest wait %.1fs; %d lapses; %d violations",
		f.programs, f.finished, f.killedPrograms, f.daemonKills, f.childKills, f.longestWait.Seconds(), f.lapses, f.violations)
}

// table returns all figures.
func (s *soak) table() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.figures
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "| %-32s | %s |\n", name, fmt.Sprintf(format, args...))
	}
	row("seed, length", "%d, %v", s.seed, time.Since(s.began).Round(time.Second))
	row("programs started", "%d: %d finished with the right result, %d killed", f.programs, f.finished, f.killedPrograms)
	row("daemons killed; their children", "%d; %d, of these %d front ends", f.daemonKills, f.childKills, f.frontEndKills)
	row("calls lost with a front end", "%d", f.lostCalls)
	row("takeovers by another daemon", "%d", f.takeovers)
	row("checks", "%d", f.checks)
	row("calls", "%v", &f.calls)
	row("longest time without progress", "%v", f.longestWait.Round(time.Millisecond))
	row("lease lapses", "%d (and %d while the machine stood still); least time left %v", f.lapses, f.machineStalls, f.shortestLease.Round(time.Millisecond))
	row("undone by the guardian", "%d queues, within %v", f.leftChanged, f.longestUndo.Round(time.Millisecond))
	row("orders found after a kill", "of %d processes, %d policies of devices", f.keptProcesses, f.keptPolicies)
	row("journal read", "in %d checks, which found %d queues changed", f.journalReads, f.journalChanges)
	row("overruns of bounds", "%d", f.overruns)
	row("requests that entered late", "%d", f.late)
	row("daemon, most", "%d descriptors, %d kB, %d goroutines", f.maxDaemonFDs, f.maxDaemonKB, f.maxGoroutines)
	row("its children, most", "%d descriptors, %d kB", f.maxChildFDs, f.maxChildKB)
	row("violations", "%d", f.violations)
	return b.String()
}

// check checks the invariants.
func (s *soak) check() {
	s.resume(false)
	if s.daemon.hasEnded() {
		s.violation("the daemon has exited: %v: %s", s.daemon.ProcessState, tail(s.daemon.output))
		s.startDaemon()
		return
	}
	var all []api.Process
	if s.call("check", func(ctx context.Context) (err error) { all, err = s.client.Processes(ctx); return err }) != nil {
		return
	}
	s.mu.Lock()
	s.figures.checks++
	s.mu.Unlock()
	s.checkProgress(all)
	s.checkJournal()
	s.checkUsage(len(s.shims))
	s.checkStatus()
	s.checkFrontEnds()
}

// checkFrontEnds checks that the daemon has its two front ends, without rights, unless one was
// killed or the daemon was started lately.
func (s *soak) checkFrontEnds() {
	if time.Since(s.frontEndKilled) < frontEndTime || time.Since(s.daemon.answered) < frontEndTime {
		return
	}
	all := frontEnds(s.daemon.Process.Pid)
	if len(all) != 2 {
		s.violation("the daemon has %d front ends, want 2", len(all))
	}
	for _, pid := range all {
		if !isConfined(pid) {
			s.violation("front end %d is not confined", pid)
		}
	}
}

// progress is what a process had done when it was last seen to have done more.
type progress struct {
	at   time.Time
	done float64
	seen bool
	lost map[string]time.Duration // how long each of its threads had waited for a CPU by then
}

// checkProgress checks that every process that may run does. If the last check was long
// ago, because an order or the start of a program took long, a process may have been paused
// meanwhile, so all begin anew.
func (s *soak) checkProgress(all []api.Process) {
	now := time.Now()
	if now.Sub(s.lastProgressCheck) > maxWait/4 {
		clear(s.lastMark)
	}
	s.lastProgressCheck = now
	seen := map[string]bool{}
	for _, p := range all {
		if len(p.Queues) == 0 || p.PID == canaryPID() {
			continue
		}
		key := fmt.Sprint(s.daemon.Process.Pid, "/", p.PID)
		seen[key] = true
		if p.Shim != nil {
			s.addShim(key, p.Shim)
		}
		done, counts := s.workOf(p)
		mark := s.lastMark[key]
		exempt := p.Attrs.Bool(attr.Paused) || p.Attrs.Class().String() == "idle" || !counts
		if exempt || !mark.seen || done >= mark.done+0.02 {
			s.lastMark[key] = progress{now, done, true, runDelays(s.hostOf(p))}
			continue
		}
		wait := now.Sub(mark.at) - longestDelay(mark.lost, runDelays(s.hostOf(p)))
		s.mu.Lock()
		s.figures.longestWait = max(s.figures.longestWait, wait)
		s.mu.Unlock()
		if wait > maxWait {
			s.lastMark[key] = progress{now, done, true, runDelays(s.hostOf(p))}
			s.violation("process %d (%s) of class %s made no progress for %v; queues %+v, shim %+v", p.PID, p.Command, p.Class(), wait.Round(time.Second), p.Queues, p.Shim)
		}
	}
	for key := range s.lastMark {
		if !seen[key] {
			delete(s.lastMark, key)
			delete(s.shims, key)
		}
	}
}

// hostOf returns the OS process in which a process does its work: simulated ones are in the daemon.
func (s *soak) hostOf(p api.Process) int {
	if strings.HasPrefix(p.Command, "sim: ") {
		return s.daemon.Process.Pid
	}
	return p.PID
}

// longestDelay returns how long the thread waited for a CPU that waited longest between two
// readings of runDelays.
func longestDelay(before, after map[string]time.Duration) (longest time.Duration) {
	for thread, waited := range after {
		longest = max(longest, waited-before[thread])
	}
	return longest
}

// runDelays returns how long each thread of a process has waited for a CPU so far.
func runDelays(pid int) map[string]time.Duration {
	delays := map[string]time.Duration{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		var run, wait time.Duration
		text, _ := os.ReadFile(file)
		if n, _ := fmt.Sscan(string(text), &run, &wait); n == 2 {
			delays[file] = wait
		}
	}
	return delays
}

// addShim adds what the shim of a process has counted since the last check.
func (s *soak) addShim(key string, n *api.Shim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, known := s.shims[key]; known {
		s.figures.overruns += n.Overruns - min(last.Overruns, n.Overruns)
		s.figures.late += n.LateRequests - min(last.LateRequests, n.LateRequests)
	}
	s.shims[key] = *n
}

// workOf returns a number that grows by 0.02 or more when the process makes progress. It
// does not use what the daemon estimates: of a simulated process the number is the device
// time that the simulator measures, of a process with a queue in a file how often it was
// started, and of a program its CPU time and its launches. counts is false if the process
// runs or has nothing to do.
func (s *soak) workOf(p api.Process) (done float64, counts bool) {
	switch {
	case strings.HasPrefix(p.Command, "sim: "):
		return p.Queues[0].Served.Seconds() * 100, p.Queues[0].Measured
	case p.Shim != nil:
		return cpuSeconds(p.PID) + float64(p.Shim.Launched), p.Shim.Launched > p.Shim.Completed || p.Queues[0].State != "running"
	}
	b := fakeBackend{dir: s.path("queues")}
	starts, running := b.starts(p.PID)
	return float64(starts), !running
}

// cpuSeconds returns the CPU time of a process.
func cpuSeconds(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // from the state on: proc(5)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(string(fields[11]))
	system, _ := strconv.Atoi(string(fields[12]))
	return float64(user+system) / 100
}

// How much more a process may use than it did after warmUp.
const (
	// moreFDs is for calls under way, and for one program that begins: its page, doorbell, pidfd and
	// connections. programFDs is for each further program.
	moreFDs    = 8
	programFDs = 6
	// daemonKB is twice the record, which is full after about a minute, because the heap may double
	// until it is collected; and 8 MiB. Measured: 22 MiB.
	daemonKB = (2*10 + 8) << 10
	// childKB is the heap of a Go program that keeps nothing: 4 MiB twice, and its stacks.
	// Measured: 4.4 MiB.
	childKB = 12 << 10
)

// usage is what a process uses, and how many programs with the shim there are.
type usage struct{ fds, kB, programs int }

func usageOf(pid int) (u usage) {
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if _, rest, found := strings.Cut(string(text), "VmRSS:"); found {
		_, _ = fmt.Sscan(rest, &u.kB)
	}
	u.fds = len(fds)
	return u
}

// checkUsage checks that descriptors and memory of the daemon and its children do not grow.
func (s *soak) checkUsage(programs int) {
	d := s.daemon
	pids := append([]int{d.Process.Pid}, children(d.Process.Pid)...)
	for i, pid := range pids {
		u, moreKB := usageOf(pid), childKB
		if i == 0 {
			u.programs, moreKB = programs, daemonKB
		}
		s.mu.Lock()
		f := &s.figures
		if i == 0 {
			f.maxDaemonFDs, f.maxDaemonKB = max(f.maxDaemonFDs, u.fds), max(f.maxDaemonKB, u.kB)
		} else {
			f.maxChildFDs, f.maxChildKB = max(f.maxChildFDs, u.fds), max(f.maxChildKB, u.kB)
		}
		s.mu.Unlock()
		key := fmt.Sprint(pid)
		warm, known := d.warm[key]
		switch {
		case !known && time.Since(d.answered) > warmUp:
			d.warm[key] = u
		case known && (u.fds > warm.fds+moreFDs+programFDs*max(0, u.programs-warm.programs) || u.kB > warm.kB+moreKB):
			s.violation("process %d of the daemon (%d of %d) has grown from %+v to %+v", pid, i+1, len(pids), warm, u)
			d.warm[key] = u
		}
	}
}

// checkStatus checks that the daemon reports no mistake of the simulator or the journal.
func (s *soak) checkStatus() {
	var st api.Status
	if s.call("status", func(ctx context.Context) (err error) { st, err = s.client.Status(ctx); return err }) != nil {
		return
	}
	s.mu.Lock()
	s.figures.maxGoroutines = max(s.figures.maxGoroutines, st.Goroutines)
	s.mu.Unlock()
	for _, c := range st.Checks {
		if !c.OK && (c.Name == "simulation" || c.Name == "journal") {
			s.violation("the daemon reports of its %s: %s", c.Name, c.Detail)
		}
	}
}

// checkUndone waits until everything is undone that a daemon has changed, which has ended or
// was killed.
func (s *soak) checkUndone(since time.Time) {
	for {
		changed, took := len(s.changedQueues()), time.Since(since)
		if changed > 0 && took < maxUndo {
			time.Sleep(time.Millisecond)
			continue
		}
		s.mu.Lock()
		s.figures.longestUndo = max(s.figures.longestUndo, took)
		s.mu.Unlock()
		if changed > 0 {
			s.violation("%d queues are changed %v after the end of the daemon", changed, took)
		}
		return
	}
}

// canaryPID is the pid of the process whose lease is watched: the test itself.
func canaryPID() int { return os.Getpid() }

// watchLease holds a page of its own at a closed gate and checks that its lease is renewed
// in time, by every daemon.
func (s *soak) watchLease() {
	for {
		s.mu.Lock()
		d := s.daemon
		s.mu.Unlock()
		if conn, page, err := connectShim(s.path("s"), strconv.Itoa(pageabi.Version), "opencl"); err == nil {
			s.pauseCanary(d)
			s.watchPage(conn, page, d)
			conn.Close()
			_ = page.Close()
		}
		select {
		case <-s.over:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// pauseCanary pauses the process whose lease is watched.
func (s *soak) pauseCanary(d *soakDaemon) {
	if _, err := s.client.Change(s.t.Context(), canaryPID(), given("paused=true")); err != nil && !d.wasKilled() {
		s.event("the watched page cannot be paused: %v", err)
	}
}

// watchPage watches one page until its daemon closes the connection.
func (s *soak) watchPage(conn net.Conn, page *pagetest.Process, d *soakDaemon) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = conn.Read(make([]byte, 1)) // the daemon never sends anything
	}()
	defer context.AfterFunc(s.t.Context(), func() { conn.Close() })()
	go func() {
		select {
		case <-s.over:
			conn.Close()
		case <-closed:
		}
	}()
	watchGate(page, d.Process.Pid, closed, func(left time.Duration, stalled bool) {
		if !d.wasKilled() {
			s.noteLease(d, left, stalled)
		}
	})
}

// watchGate calls note again and again with how much of the lease of a closed gate is left.
// A lapse is the machine's if it is too busy: see lateTick.
func watchGate(page *pagetest.Process, daemon int, over <-chan struct{}, note func(left time.Duration, stalled bool)) {
	last, stalled, waits := time.Now(), time.Time{}, cpuWaits{pid: daemon}
	for {
		select {
		case <-over:
			return
		case <-time.After(20 * time.Millisecond):
		}
		closed, until := page.Page.Gate.Load() == pageabi.GateClosed, page.Page.Lease.Load()
		left := time.Duration(int64(until - pageabi.Now()))
		if time.Since(last) > lateTick || waits.recent(left <= 0) > busyWait {
			stalled = time.Now()
		}
		last = time.Now()
		if !closed || page.Page.Gate.Load() != pageabi.GateClosed {
			continue
		}
		note(left, time.Since(stalled) < time.Second)
		if left <= 0 {
			time.Sleep(time.Second) // one lapse counts once
			last = time.Now()
		}
	}
}

// If this goroutine is delayed by lateTick, or the threads of the daemon together wait for
// a CPU for busyWait within about a lease, the machine is too busy for leases to be renewed in time.
const (
	lateTick = 100 * time.Millisecond
	busyWait = 200 * time.Millisecond
)

// noteLease takes in how much of a lease was left.
func (s *soak) noteLease(d *soakDaemon, left time.Duration, stalled bool) {
	s.mu.Lock()
	f := &s.figures
	if f.shortestLease == 0 || left < f.shortestLease {
		f.shortestLease = left
	}
	lapsed := left <= 0 && !stalled
	switch {
	case lapsed:
		f.lapses++
	case left <= 0:
		f.machineStalls++
	}
	s.mu.Unlock()
	if lapsed {
		s.violation("a lease of daemon %d lapsed %v ago", d.Process.Pid, -left)
	}
}

// cpuWaits reads how long the threads of a process waited for a CPU.
type cpuWaits struct {
	pid  int
	last map[string]time.Duration // by thread
	read [3]struct {              // the last readings, the newest first
		at   time.Time
		wait time.Duration // of all threads, since the reading before
	}
}

// recent returns how long all threads together waited since the last reading but two. They
// are read every 300 ms, or at once.
func (w *cpuWaits) recent(atOnce bool) (total time.Duration) {
	if atOnce || time.Since(w.read[0].at) > 300*time.Millisecond {
		w.read[2], w.read[1] = w.read[1], w.read[0]
		w.read[0].at, w.read[0].wait = time.Now(), 0
		now := runDelays(w.pid)
		for thread, wait := range now {
			w.read[0].wait += wait - w.last[thread]
		}
		w.last = now
	}
	for _, r := range w.read {
		total += r.wait
	}
	return total
}

// finish resumes everything, waits for the programs, stops the daemon, and checks that
// everything is undone.
func (s *soak) finish(busy *sync.WaitGroup) {
	s.event("the end begins")
	s.resume(true)
	s.restoreAtEnd()
	ended := make(chan struct{})
	go func() { busy.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		s.checkHung()
		<-ended
	}
	kids := children(s.daemon.Process.Pid)
	_ = s.daemon.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.daemon.ended:
	case <-time.After(20 * time.Second):
		s.violation("the daemon does not end: %s", tail(s.daemon.output))
	}
	s.checkUndone(time.Now())
	for _, pid := range kids {
		if syscall.Kill(pid, 0) == nil {
			s.violation("process %d of the daemon has outlived it", pid)
		}
	}
	s.checkCounts()
	if c, err := net.Dial("unix", s.path("s")); err == nil {
		c.Close()
		s.violation("the socket is open after the end of the daemon")
	}
}

// checkCounts checks that the checks had something to check.
func (s *soak) checkCounts() {
	s.mu.Lock()
	f := s.figures
	s.mu.Unlock()
	if f.journalReads < f.checks*3/4 {
		s.violation("the journal could be read in %d of %d checks", f.journalReads, f.checks)
	}
	if f.checks >= 60 && f.journalChanges == 0 {
		s.violation("in none of %d checks was a queue changed", f.checks)
	}
}

// checkHung checks that the programs that have not ended are busy, and kills them.
func (s *soak) checkHung() {
	s.mu.Lock()
	programs := s.programs
	s.mu.Unlock()
	before := map[*soakProgram]float64{}
	for _, p := range programs {
		if p != nil {
			before[p] = cpuSeconds(p.pid())
		}
	}
	time.Sleep(10 * time.Second)
	for p, was := range before {
		if !p.hasEnded() && cpuSeconds(p.pid()) <= was {
			s.violation("program %d %v does not end: %s", p.Process.Pid, p.args, tail(p.output))
		}
		p.kill()
	}
}

// restoreAtEnd makes the daemon let everything run.
func (s *soak) restoreAtEnd() {
	_ = s.call("restore", func(ctx context.Context) error { _, err := s.client.Restore(ctx); return err })
}
