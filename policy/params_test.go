package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestUnknownParameterIsRefusedWithTheKnownOnes checks that the error tells the user what
// there is.
func TestUnknownParameterIsRefusedWithTheKnownOnes(t *testing.T) {
	for _, info := range List() {
		_, err := Choose(info.Name, map[string]string{"no-such": "1"})
		if err == nil {
			t.Errorf("%s: got no error, want one", info.Name)
			continue
		}
		want := []string{info.Name, `"no-such"`}
		for _, p := range info.Params {
			want = append(want, p.Name)
		}
		if len(info.Params) == 0 {
			want = append(want, "it has none")
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: got error %q, want one that names %s", info.Name, err, w)
			}
		}
	}
}

// TestParameterLimitsAreAllowed checks that both ends of a range are in it, and what is
// beyond is not.
func TestParameterLimitsAreAllowed(t *testing.T) {
	for _, c := range []struct {
		policy, param string
		good, bad     []string
	}{
		{"mlfq", "levels", []string{"1", "16"}, []string{"0", "17"}},
		{"rr", "quantum", []string{"100us", "10s"}, []string{"99999ns", "10.000000001s"}},
		{"giveway", "slice", []string{"1ns", "10s", "min", "default"}, []string{"0s", "11s", "short"}},
		{"hpf", "lead", []string{"0s", "500ms"}, []string{"-1ns", "501ms"}},
		{"hpf", "patience", []string{"0s", "500ms"}, []string{"-1ns", "501ms"}},
		{"giveway", "turn", []string{"1ms", "10s"}, []string{"999us", "11s"}},
		{"giveway", "bound", []string{"1", "65536"}, []string{"0", "65537"}},
		{"giveway", "linger", []string{"0s", "1s"}, []string{"-1ns", "1001ms"}},
		{"giveway", "burst", []string{"0s", "1s"}, []string{"-1ns", "1001ms"}},
		{"giveway", "gap", []string{"1ms", "1s"}, []string{"999us", "1001ms"}},
		{"slo", "quiet", []string{"1ms", "10m"}, []string{"999us", "601s"}},
		{"cfs", "bonus", []string{"0s", "1s"}, []string{"-1ns", "1001ms"}},
		{"edf", "tardy", []string{"0s", "1h"}, []string{"-1ns", "3601s"}},
		{"kedf", "k", []string{"1", "65536"}, []string{"0", "65537"}},
		{"llf", "hysteresis", []string{"10us", "1s"}, []string{"9us", "1001ms"}},
		{"mlfq", "boost", []string{"1ms", "1h"}, []string{"999us", "3601s"}},
	} {
		for _, value := range c.good {
			if _, err := Choose(c.policy, map[string]string{c.param: value}); err != nil {
				t.Errorf("%s: %v", c.policy, err)
			}
		}
		for _, value := range c.bad {
			if _, err := Choose(c.policy, map[string]string{c.param: value}); err == nil {
				t.Errorf("%s: %s=%s: got no error, want one", c.policy, c.param, value)
			}
		}
	}
}

// TestSliceParameterTakesWords checks the slices that batch work gets with each value of
// giveway's slice, beside an online queue, and that the value is shown as it was given.
func TestSliceParameterTakesWords(t *testing.T) {
	for _, c := range []struct {
		value string
		want  time.Duration
	}{{"min", sched.MinSlice}, {"default", 0}, {"3ms", 3 * ms}} {
		l := newNode(t, "giveway", map[string]string{"slice": c.value}, slicedGPU)
		low := l.open(batch(1), saturating)
		l.open(class(sched.Online), idle)
		l.run(10 * ms)
		if low.slice != c.want {
			t.Errorf("slice=%s: batch work has a slice of %v, want %v", c.value, low.slice, c.want)
		}
		for _, p := range paramsOf(l.policies[0]).describe() {
			if p.Name == "slice" && p.Value != c.value {
				t.Errorf("slice=%s is shown as %s", c.value, p.Value)
			}
		}
	}
}

// TestCFSWeightsAreThoseOfLinux compares with sched_prio_to_weight in Linux's
// kernel/sched/core.c: a process gets on the device what its nice value gives it on a CPU.
func TestCFSWeightsAreThoseOfLinux(t *testing.T) {
	linux := strings.Fields(`
		88761 71755 56483 46273 36291 29154 23254 18705 14949 11916
		9548 7620 6100 4904 3906 3121 2501 1991 1586 1277
		1024 820 655 526 423 335 272 215 172 137
		110 87 70 56 45 36 29 23 18 15`)
	for i, want := range linux {
		q := sched.Queue{Attr: sched.Attr{Nice: int8(i - 20)}}
		if got := fresh(t, "cfs").(*fair).weightOf(&q); fmt.Sprint(got) != want {
			t.Errorf("nice %d: got weight %d, want %s", i-20, got, want)
		}
	}
}
