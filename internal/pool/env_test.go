package pool

import (
	"slices"
	"testing"
)

// TestLabelOf checks that an environment is a pool's only if its MPS pipe folder is the
// pool's: whatever a member starts inherits the variables.
func TestLabelOf(t *testing.T) {
	p := &Pool{Info: Info{Label: "a"}, dir: "/x"}
	if got := LabelOf(p.environment(nil)); got != "a" {
		t.Errorf("control daemon: got %q", got)
	}
	member := p.clientEnv(Request{Env: []string{"HOME=/"}}, nil)
	if got := LabelOf(member); got != "a" {
		t.Errorf("member: got %q", got)
	}
	for pipe, want := range map[string]string{"/own": "", "/x/pipe-of-mine": "", "/x/pipe/1000": "a"} {
		if got := LabelOf(append(slices.Clone(member), pipeEnv+"="+pipe)); got != want {
			t.Errorf("server with pipes in %s: got %q, want %q", pipe, got, want)
		}
	}
}

// TestWithoutPool checks that a program which a member starts loses the variables of the
// pool, and keeps those of an MPS server that the member's user started.
func TestWithoutPool(t *testing.T) {
	p := &Pool{Info: Info{Label: "a"}, dir: "/x"}
	member := p.clientEnv(Request{Env: []string{"HOME=/"}, Weight: 1}, []MemberInfo{{Weight: 2}})
	if got := WithoutPool(member); !slices.Equal(got, []string{"HOME=/"}) {
		t.Errorf("got %q", got)
	}
	own := append(slices.Clone(member), pipeEnv+"=/own")
	if pipe, _ := lookup(WithoutPool(own), pipeEnv); pipe != "/own" {
		t.Errorf("own server in a member: got pipe folder %q, want /own", pipe)
	}
	plain := []string{pipeEnv + "=/own", threadsEnv + "=30"}
	if got := WithoutPool(plain); !slices.Equal(got, plain) {
		t.Errorf("no member: got %q", got)
	}
}
