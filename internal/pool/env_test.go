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

// TestClientPriority checks that a member of negative priority is below normal for MPS, unless
// its user says otherwise. MPS has no level above normal.
func TestClientPriority(t *testing.T) {
	p := &Pool{Info: Info{Label: "a"}, dir: "/x"}
	for _, c := range []struct {
		priority int64
		own      []string
		want     string
	}{
		{0, nil, ""},
		{7, nil, ""},
		{-1, nil, "1"},
		{-20, nil, "1"},
		{-1, []string{"CUDA_MPS_CLIENT_PRIORITY=0"}, "0"},
		{0, []string{"CUDA_MPS_CLIENT_PRIORITY=1"}, "1"},
	} {
		env := p.clientEnv(Request{Env: c.own, Priority: c.priority}, nil)
		if got, _ := lookup(env, "CUDA_MPS_CLIENT_PRIORITY"); got != c.want {
			t.Errorf("priority %d, with %q of the user: got %q, want %q", c.priority, c.own, got, c.want)
		}
	}
}

// TestWithoutPool checks that a program which a member starts loses the variables of the
// pool, and keeps those of an MPS server that the member's user started.
func TestWithoutPool(t *testing.T) {
	p := &Pool{Info: Info{Label: "a"}, dir: "/x"}
	member := p.clientEnv(Request{Env: []string{"HOME=/"}, Weight: 1, Priority: -1}, []MemberInfo{{Weight: 2}})
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
