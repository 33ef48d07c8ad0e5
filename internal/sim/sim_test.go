package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

func model(t testing.TB, name string) sim.Model {
	t.Helper()
	m, err := sim.NewModel(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func choose(t testing.TB, name string, params map[string]string) sched.PolicyChoice {
	t.Helper()
	c, err := policy.Choose(name, params)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
