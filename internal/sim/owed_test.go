package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// What a queue owes, or is owed, is bounded: whatever happened in the ten minutes before, queues
// of equal weight have equal shares within seconds.

const owedFor = 10 * time.Minute

// owedWorld is a World with two jobs of the weights 1 and 100 that fill the device.
func owedWorld(t *testing.T, policy, device string) sim.Config {
	cfg := sim.Config{
		Seed: 1, Policy: choose(t, policy, nil), Length: owedFor + 12*time.Second,
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, device)}}, SampleInterval: 100 * ms,
	}
	for i, weight := range []uint32{1, 100} {
		c := flatOut(i, 500*us, 4)
		c.Attr, c.Shim = sched.Attr{Class: sched.Batch, Weight: weight}, true
		cfg.Clients = append(cfg.Clients, c)
	}
	return cfg
}

// shareAfter runs a World and returns the share of the device that a client has in the 10 s that
// begin 2 s after owedFor. At owedFor it calls change, unless that is nil.
func shareAfter(cfg sim.Config, client int, change func(*sim.World)) float64 {
	const settle, counted = 2 * time.Second, 10 * time.Second
	var w *sim.World
	var from, to time.Duration
	cfg.Sample = func(now sched.Time, queues []sim.QueueSample) {
		if now >= sched.Time(owedFor) && change != nil {
			change(w)
			change = nil
		}
		for _, q := range queues {
			switch at := now.Sub(sched.Time(owedFor)); {
			case q.Client != client:
			case at <= settle:
				from = q.DeviceTime
			case at <= settle+counted:
				to = q.DeviceTime
			}
		}
	}
	w = sim.New(cfg)
	w.Run()
	return (to - from).Seconds() / counted.Seconds()
}

func eachTurnPolicy(t *testing.T, f func(t *testing.T, policy, device string)) {
	for _, device := range []string{"nvidia-h200", "amd-hws", "level1-npu"} {
		for _, policy := range []string{"slo", "giveway", "cfs", "wfq"} {
			t.Run(policy+" on "+device, func(t *testing.T) { f(t, policy, device) })
		}
	}
}

// TestWeightChangeTakesEffect: a job has had the floor for ten minutes, because its weight is small,
// and gets the weight of the other one.
func TestWeightChangeTakesEffect(t *testing.T) {
	eachTurnPolicy(t, func(t *testing.T, policy, device string) {
		cfg := owedWorld(t, policy, device)
		got := shareAfter(cfg, 0, func(w *sim.World) { w.SetAttr(0, sched.Attr{Class: sched.Batch, Weight: 100}) })
		if got < 0.42 {
			t.Errorf("2 s after it got the weight of the other job, the job has %.3f of the device, want about 0.5", got)
		}
	})
}

// TestNewJobBesideFloor: a job comes to two others of which one has had the floor for ten minutes.
func TestNewJobBesideFloor(t *testing.T) {
	eachTurnPolicy(t, func(t *testing.T, policy, device string) {
		cfg := owedWorld(t, policy, device)
		c := cfg.Clients[1]
		c.Name, c.Start = "c2", owedFor
		cfg.Clients = append(cfg.Clients, c)
		if got := shareAfter(cfg, 2, nil); got < 0.42 {
			t.Errorf("the new job has %.3f of the device, want as much as the one of the same weight", got)
		}
	})
}

// TestNewJobBesidePool: the same beside a pool, which cannot be stopped and so has more than its share.
func TestNewJobBesidePool(t *testing.T) {
	for _, policy := range []string{"slo", "giveway", "cfs", "wfq"} {
		cfg := owedWorld(t, policy, "nvidia-h200")
		cfg.Clients[0].Shim, cfg.Clients[0].Pool = false, "jobs"
		cfg.Clients[1].Attr.Weight = 2
		c := cfg.Clients[1]
		c.Name, c.Start = "c2", owedFor
		cfg.Clients = append(cfg.Clients, c)
		job := shareAfter(cfg, 1, nil)
		if got := shareAfter(cfg, 2, nil); got < 0.85*job || job < 0.15 {
			t.Errorf("%s: the new job has %.3f of the device, and the one of the same weight %.3f", policy, got, job)
		}
	}
}
