package daemon

import (
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/shim/pageabi"
)

// attacks are the ways in which a user attacks the daemon at a socket, until the context is
// done. What they return is printed; "BROKEN" in it fails the test.
var attacks = map[string]func(ctx context.Context, socket string) string{
	"big requests":    sendBigRequests,
	"connections":     holdConnections,
	"forged counters": forgeCounters,
	"half requests":   sendHalfRequests,
	"hints":           floodHints,
	"journal":         fillJournal,
	"lists":           floodLists,
	"metrics":         floodMetrics,
	"no reading":      readNothing,
	"pages":           takePages,
	"runs":            beginRuns,
	"squat":           squatSocket,
	"trees":           setTrees,
}

// ownUser are the attacks that have a user of their own each: the others use up the requests, connections
// and pages of theirs.
var ownUser = []string{"forged counters", "hints", "journal", "lists", "metrics", "no reading"}

func keysOf[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// untilInputEnds calls f with a context that is done when the standard input ends.
func untilInputEnds(f func(context.Context) string) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
		time.Sleep(10 * time.Second)
		os.Exit(1) // an attack hangs: the daemon does not answer it, which is its right
	}()
	fmt.Println(f(ctx))
}

// runAttack is an attacker's process.
func runAttack(socket, name string) {
	untilInputEnds(func(ctx context.Context) string { return attacks[name](ctx, socket) })
}

// runVictim calls the API and prints how long each call took, or why it failed.
func runVictim(socket string) {
	c := client.New(socket)
	untilInputEnds(func(ctx context.Context) string {
		for ctx.Err() == nil {
			began := time.Now()
			_, err := c.Processes(ctx)
			if took := time.Since(began); err == nil {
				fmt.Println(took)
			} else if ctx.Err() == nil {
				fmt.Println(took, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		return "0s"
	})
}

// jobStep is the device time of a job's command. It takes no CPU time.
const jobStep = 2 * time.Millisecond

// runJob is a batch job that always has work. It prints how many commands it has run, again
// and again. A greedy one asks for everything that a hint can ask for.
func runJob(socket string, greedy bool) {
	_, p, err := connectShim(socket, strconv.Itoa(pageabi.Version), "opencl")
	if err != nil {
		fmt.Println(err)
		return
	}
	untilInputEnds(func(ctx context.Context) string {
		steps := 0
		for ; ctx.Err() == nil; steps++ {
			if greedy && steps%10 == 0 {
				p.Hint(pageabi.HintClass, 1)
				p.Hint(pageabi.HintWeight, 10000)
				p.Hint(pageabi.HintPriority, 1000)
			}
			p.Launch()
			time.Sleep(jobStep)
			p.AddCompleted(1)
			fmt.Println(steps + 1)
		}
		return fmt.Sprint(steps)
	})
}

// repeat calls f in many goroutines until the context is done, and returns how often it
// succeeded and failed, and the last failure.
func repeat(ctx context.Context, n int, f func() error) string {
	var ok, failed atomic.Int64
	var last atomic.Value
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := f(); err == nil {
					ok.Add(1)
				} else if ctx.Err() == nil {
					failed.Add(1)
					last.Store(err.Error())
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	return fmt.Sprintf("%d succeeded, %d failed; last failure: %.200v", ok.Load(), failed.Load(), last.Load())
}

func setTrees(ctx context.Context, socket string) string {
	c := client.New(socket)
	return repeat(ctx, 100, func() error {
		_, err := c.Change(ctx, os.Getpid(), api.Change{Values: attr.Must("class=batch weight=1"), Tree: true})
		return err
	})
}

func beginRuns(ctx context.Context, socket string) string {
	c := client.New(socket)
	return repeat(ctx, 30, func() error {
		run, err := c.Run(ctx, api.Run{Values: attr.Must("weight=1")})
		if err == nil {
			run.Close()
		}
		return err
	})
}

// holdConnections opens connections and keeps them open. A connection that the daemon
// closes is opened again.
func holdConnections(ctx context.Context, socket string) string {
	return repeat(ctx, 600, func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		_, err = conn.Read(make([]byte, 1))
		return err
	})
}

// sendHalfRequests sends requests a byte at a time and never ends one.
func sendHalfRequests(ctx context.Context, socket string) string {
	return repeat(ctx, 100, func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		defer conn.Close()
		for text := "POST /v1/processes/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"; ctx.Err() == nil; text = " " {
			if _, err := io.WriteString(conn, text); err != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	})
}

func sendBigRequests(ctx context.Context, socket string) string {
	var d net.Dialer
	c := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) },
	}}
	body, header := strings.Repeat("[", 4<<20), strings.Repeat("x", 900<<10)
	return repeat(ctx, 10, func() error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://giveway/v1/processes/1", strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("X-Long", header)
		answer, err := c.Do(r)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	})
}

// floodHints writes hints to pages that do no work, and rings the doorbell for each.
func floodHints(ctx context.Context, socket string) string {
	_, p, err := connectShim(socket, strconv.Itoa(pageabi.Version), "opencl")
	if err != nil {
		return err.Error()
	}
	n := 0
	for ; ctx.Err() == nil; n++ {
		p.Hint(pageabi.HintKind(1+n%10), int64(n%3))
		pageabi.Ring(p.Doorbell)
	}
	return fmt.Sprint(n, " hints")
}

// takePages takes pages and keeps them. A page that is refused is asked for again.
func takePages(ctx context.Context, socket string) string {
	return repeat(ctx, 300, func() error {
		conn, p, err := connectShim(socket, strconv.Itoa(pageabi.Version), "hint")
		if err != nil {
			return err
		}
		defer conn.Close()
		defer p.Close()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		return nil
	})
}

// squatSocket tries to put a socket of its own in the place of the daemon's.
func squatSocket(ctx context.Context, socket string) string {
	return repeat(ctx, 1, func() error {
		for what, err := range map[string]error{
			"remove": os.Remove(socket), "rename": os.Rename(socket, socket+"2"), "chmod": os.Chmod(socket, 0o600),
			"link": os.Symlink("/etc/passwd", socket+".lock"),
		} {
			if err == nil {
				return fmt.Errorf("BROKEN: %s of the socket succeeded", what)
			}
		}
		if l, err := net.Listen("unix", socket+"3"); err == nil {
			l.Close()
			return fmt.Errorf("BROKEN: another user can listen beside the daemon's socket")
		}
		time.Sleep(10 * time.Millisecond)
		return nil
	})
}
