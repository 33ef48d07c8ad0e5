package daemon

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// TestOrdersAreRefusedAtTheEnd: a daemon that ends refuses orders, with an error that says what to
// do, instead of carrying out what the next one will not know. A run whose connection it closes goes on.
func TestOrdersAreRefusedAtTheEnd(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	p, _ := sleeper(t)
	b.mustOffer(t, p)
	_, end, err := d.BeginRun(server.Caller{PID: p.PID, All: true}, api.Run{Values: attr.Must("class=batch")})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	end()
	for what, order := range map[string]func() error{
		"set":        func() error { _, err := d.Change(ourselves, p.PID, given("paused=true weight=7")); return err },
		"set --tree": func() error { _, err := d.Change(ourselves, os.Getpid(), tree("weight=7")); return err },
		"policy":     func() error { _, err := d.SetPolicy(ourselves, api.Policy{Name: "rr"}); return err },
		"restore":    func() error { return d.Restore(ourselves) },
		"run": func() error {
			_, _, err := d.BeginRun(server.Caller{PID: p.PID, All: true}, api.Run{Values: attr.Must("class=idle")})
			return err
		},
		"register":   func() error { return d.Register(container(first, podOne, "class=batch")) },
		"unregister": func() error { return d.Unregister(first) },
	} {
		if err := order(); err == nil || !strings.Contains(err.Error(), "try again in a moment") {
			t.Errorf("%s: got %v, want that it is refused until the next daemon runs", what, err)
		}
	}
	d, b, stop = nextDaemon(t, b, stop, nil)
	defer stop()
	b.mustOffer(t, p)
	if got := d.Processes()[0]; got.Class() != "batch" || got.Attrs.Int(attr.Weight) != 1 {
		t.Errorf("after a restart: got class %s and weight %d, want those of the run, batch and 1", got.Class(), got.Attrs.Int(attr.Weight))
	}
}

// TestNoOrderIsLostAtTheEnd: while orders are given without a pause the daemon ends. What was
// answered last with success is in force under the next daemon.
func TestNoOrderIsLostAtTheEnd(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	const processes = 3
	var all []proc.Process
	for range processes {
		p, _ := sleeper(t)
		all = append(all, p)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := 30
	if testing.Short() {
		rounds = 8
	}
	for _, p := range all {
		b.mustOffer(t, p)
	}
	for round := range rounds {
		var givers sync.WaitGroup
		var ended atomic.Int32
		var weights [processes]int // the last that was answered with success
		var quantum int
		for i, p := range all {
			givers.Go(func() {
				for w := 1; ended.Load() == 0; w++ {
					weight := 1 + (round*1000+w)%1000
					if _, err := d.Change(ourselves, p.PID, given(fmt.Sprint("weight=", weight))); err != nil {
						return
					}
					weights[i] = weight
				}
			})
		}
		givers.Go(func() {
			for q := 1; ended.Load() == 0; q++ {
				_, err := d.SetPolicy(ourselves, api.Policy{Name: "rr", Params: map[string]string{"quantum": fmt.Sprintf("%dms", 1+q%1000)}})
				if err != nil {
					return
				}
				quantum = 1 + q%1000
			}
		})
		time.Sleep(time.Duration(random.IntN(30_000)) * time.Microsecond)
		stop()
		ended.Store(1)
		givers.Wait()
		d, b, stop = nextDaemon(t, b, stop, nil)
		for _, p := range all {
			b.mustOffer(t, p)
		}
		of := map[int]int64{}
		for _, p := range d.Processes() {
			of[p.PID] = p.Attrs.Int(attr.Weight)
		}
		for i, p := range all {
			if weights[i] > 0 && of[p.PID] != int64(weights[i]) {
				t.Errorf("round %d: process %d has weight %d, and %d was answered with success", round, p.PID, of[p.PID], weights[i])
			}
		}
		if got := d.Policy().Params["quantum"]; quantum > 0 && got != fmt.Sprintf("%dms", quantum) && got != (time.Duration(quantum)*time.Millisecond).String() {
			t.Errorf("round %d: the policy's quantum is %s, and %dms was answered with success", round, got, quantum)
		}
	}
	stop()
}
