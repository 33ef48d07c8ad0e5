package daemon

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// given is a change that sets attributes, written as attr.Parse reads them.
func given(attrs string) api.Change { return api.Change{Values: attr.Must(attrs)} }

// tree is the same for a process and its descendants.
func tree(attrs string) api.Change { return api.Change{Values: attr.Must(attrs), Tree: true} }

// setRules puts rules in force.
func setRules(d *Daemon, rules []config.Rule) {
	d.mu.Lock()
	c := *d.conf
	d.mu.Unlock()
	c.Rules = rules
	_ = d.useConfig(&c) // its policy does not change
}

// caller is a process of the tests' own user that makes a request.
func caller(pid int) server.Caller {
	return server.Caller{UID: ourselves.UID, GID: ourselves.GID, PID: pid, All: true}
}

// beginRun begins a run of a process with these attributes.
func beginRun(t *testing.T, d *Daemon, pid int, attrs string) (end func()) {
	t.Helper()
	_, end, err := d.BeginRun(caller(pid), api.Run{Values: attr.Must(attrs)})
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// givenTo returns the attributes that a process was given, without those that it has
// from its own CPU scheduling parameters: the tests may run under nice.
func givenTo(p api.Process) attr.Values {
	got := p.Attrs.Given()
	for _, id := range got.IDs() {
		if p.Attrs.Source(id) == attr.FromProcess {
			got.Remove(id)
		}
	}
	return got
}

// check compares attributes of a process, and the source of its class.
func check(t *testing.T, what string, p api.Process, want string, from attr.Source) {
	t.Helper()
	got := givenTo(p)
	if got != attr.Must(want) || p.Attrs.Source(attr.Class) != from {
		t.Errorf("%s: got %v with class from %v, want %s from %v", what, got, p.Attrs.Source(attr.Class), want, from)
	}
}

// TestRunFoundAfterItsProcess begins a run when the shims of its processes have connected
// already: the run applies, but not over hints and settings.
func TestRunFoundAfterItsProcess(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	plain, hinted, owned := startShim(t, socket, "cuda"), startShim(t, socket, "cuda"), startShim(t, socket, "cuda")
	hinted.send("hint 1 1")
	eventually(t, "the hint is applied", func() bool { p := hinted.described(d); return p.Class() == "online" })
	owned.set(t, d, "class=idle")
	defer beginRun(t, d, os.Getpid(), "class=batch weight=3")()
	check(t, "without hint and setting", plain.described(d), "class=batch weight=3", attr.FromRun)
	check(t, "with a hint", hinted.described(d), "class=online weight=3", attr.FromHint)
	check(t, "with a setting", owned.described(d), "class=idle weight=3", attr.FromSet)

	// A process that outlives its run keeps the attributes when rules are applied again.
	beginRun(t, d, plain.Process.Pid, "class=idle")()
	setRules(d, d.conf.Rules)
	check(t, "after its run", plain.described(d), "class=idle", attr.FromRun)
	// The nearer of two runs applies.
	defer beginRun(t, d, plain.Process.Pid, "class=batch")()
	defer beginRun(t, d, os.Getppid(), "class=idle")()
	check(t, "with a run around its own", plain.described(d), "class=batch", attr.FromRun)
}

// TestRestoreLastsUntilPolicyIsChosen: after restore the policy is native and attributes
// are at their defaults. A rule reload changes nothing, a policy brings back rules and
// runs, and what was set stays gone.
func TestRestoreLastsUntilPolicyIsChosen(t *testing.T) {
	d := newShimDaemon()
	d.conf.Rules = []config.Rule{{Attrs: attr.Must("weight=7")}}
	socket, _ := serve(t, d)
	p := startShim(t, socket, "cuda")
	defer beginRun(t, d, os.Getpid(), "class=batch")()
	p.set(t, d, "slo=5ms paused=true")
	p.send("hint %d 9", shimpage.HintPriority)
	eventually(t, "the hint is applied", func() bool { return p.described(d).Attrs.Int(attr.Priority) == 9 })
	if err := d.Restore(ourselves); err != nil {
		t.Fatal(err)
	}
	setRules(d, d.conf.Rules)
	check(t, "restored", p.described(d), "", attr.FromDefault)
	if got := d.Policy().Name; got != "native" {
		t.Errorf("policy after restore: got %s, want native", got)
	}
	defer beginRun(t, d, os.Getpid(), "class=batch")() // as after a restart of the daemon
	check(t, "restored, and its run began again", p.described(d), "", attr.FromDefault)
	// A process that is started now gets its run's attributes, under the policy native.
	late := startShim(t, socket, "cuda")
	check(t, "started after restore", late.described(d), "class=batch weight=7", attr.FromRun)
	if got := late.described(d).Ignored; len(got) != 2 || got[0].Mark != "ignored by native" {
		t.Errorf("ignored after restore: got %+v, want class and weight", got)
	}
	if _, err := d.SetPolicy(ourselves, api.Policy{Name: "slo"}); err != nil {
		t.Fatal(err)
	}
	check(t, "with a policy again", p.described(d), "class=batch weight=7", attr.FromRun)
}

// TestSetTree: attributes set with --tree reach the descendants that exist and those to
// come, though the root itself uses no device; but not those of other users.
func TestSetTree(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	me := os.Getpid()
	first := startShim(t, socket, "cuda")
	set := func(pid int, attrs string) {
		t.Helper()
		if _, err := d.Change(ourselves, pid, tree(attrs)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := d.Change(ourselves, me, tree("class=batch"))
	if err != nil || got.PID != me || got.Class() != "batch" || len(got.Queues) != 0 {
		t.Fatalf("the root: got %+v, %v", got, err)
	}
	second := startShim(t, socket, "cuda")
	check(t, "an older descendant", first.described(d), "class=batch", attr.FromSet)
	check(t, "a newer descendant", second.described(d), "class=batch", attr.FromSet)
	set(me, "paused=true")
	check(t, "paused", second.described(d), "class=batch paused=true", attr.FromSet)
	check(t, "started while paused", startShim(t, socket, "cuda").described(d), "class=batch paused=true", attr.FromSet)
	set(me, "paused=false")
	check(t, "resumed", first.described(d), "class=batch paused=false", attr.FromSet)

	// Of what was set for a part and for the whole tree, the last order applies.
	small := first.Process.Pid
	for _, c := range []struct {
		pid    int
		paused string
	}{{me, "true"}, {small, "false"}, {me, "true"}, {me, "false"}, {small, "true"}, {me, "false"}} {
		set(c.pid, "paused="+c.paused)
		d.mu.Lock()
		p := d.processes[small]
		for _, g := range d.treesOf(&p.info, p.lineage) {
			want, _ := attr.Must("paused=" + c.paused).Get(attr.Paused)
			if got, _ := g.values.Get(attr.Paused); got != want && (c.pid != small || g.root().PID == small) {
				t.Errorf("%+v: got paused %d in the tree of %d, want %d", c, got, g.root().PID, want)
			}
		}
		d.mu.Unlock()
	}
	set(me, "bound=4")
	if got := first.described(d).Attrs.Int(attr.Bound); got != 4 {
		t.Errorf("bound of the tree: got %d, want 4", got)
	}
	d.mu.Lock()
	mine := treeOf(t, d, me)
	mine.by = server.Caller{UID: 4711}
	delete(d.trees, treeOf(t, d, small).root())
	d.mu.Unlock()
	check(t, "in another user's tree", startShim(t, socket, "cuda").described(d), "", attr.FromDefault)
	d.mu.Lock()
	delete(d.trees, mine.root())
	mine.by = ourselves
	mine.lineage[0].Start++
	d.trees[mine.root()] = mine
	d.mu.Unlock()
	check(t, "in the tree of an earlier process with that pid", startShim(t, socket, "cuda").described(d), "", attr.FromDefault)
	if _, err := d.Change(ourselves, 1<<22+1, tree("class=batch")); err == nil {
		t.Error("the tree of a process that does not exist was changed")
	}
}

// treeOf returns the tree with attributes whose root has a pid. d.mu is held.
func treeOf(t *testing.T, d *Daemon, pid int) *treeAttrs {
	t.Helper()
	for id, tree := range d.trees {
		if id.PID == pid {
			return tree
		}
	}
	t.Fatalf("process %d is not the root of a tree with attributes", pid)
	return nil
}

// TestTreeAttrsApplyToOneUser: a run applies to its own user's processes, root's to all.
func TestTreeAttrsApplyToOneUser(t *testing.T) {
	for _, c := range []struct {
		by   server.Caller
		uid  uint32
		want bool
	}{
		{server.Caller{All: true}, 0, true},
		{server.Caller{All: true}, 1000, true},
		{server.Caller{UID: 1000}, 1000, true},
		{server.Caller{UID: 1000}, 1001, false},
		{server.Caller{UID: 1000}, 0, false},
	} {
		g := treeAttrs{by: c.by}
		if got := newTestDaemon().appliesTo(&g, &proc.Process{UID: c.uid}); got != c.want {
			t.Errorf("%+v: got %v, want %v", c, got, c.want)
		}
	}
	if _, _, err := newShimDaemon().BeginRun(caller(os.Getpid()), api.Run{Values: attr.Must("paused=true")}); err == nil {
		t.Error("a run with paused was accepted")
	}
}

// TestSourcesOverrideEachOther: rule < run < hint < set for every attribute, also when
// rules are applied again and runs begin late.
func TestSourcesOverrideEachOther(t *testing.T) {
	d := newShimDaemon()
	d.conf.Rules = []config.Rule{{Attrs: attr.Must("weight=9 nice=3 deadline=9ms")}}
	socket, _ := serve(t, d)
	p := startShim(t, socket, "cuda")
	p.set(t, d, "weight=2 deadline=1s")
	p.send("hint %d %d", shimpage.HintWeight, 5)
	p.send("hint %d %d", shimpage.HintPriority, 7)
	p.send("hint %d %d", shimpage.HintSLO, 10*time.Millisecond)
	eventually(t, "the hints are applied", func() bool { return p.described(d).Attrs.Duration(attr.SLO) > 0 })
	if _, err := d.Hint(ourselves, p.Process.Pid, api.Hint{Values: attr.Must("deadline=0")}); err != nil {
		t.Fatal(err)
	}
	defer beginRun(t, d, os.Getpid(), "slo=14ms weight=3 share=20%")()
	setRules(d, d.conf.Rules)
	check(t, "all sources", p.described(d), "weight=2 priority=7 nice=3 share=20% slo=10ms deadline=1s", attr.FromDefault)
	for id, want := range map[attr.ID]attr.Source{
		attr.Weight: attr.FromSet, attr.Priority: attr.FromHint, attr.Nice: attr.FromRule, attr.Share: attr.FromRun,
		attr.SLO: attr.FromHint, attr.Deadline: attr.FromSet, attr.Focus: attr.FromDefault,
	} {
		if got := p.described(d).Attrs.Source(id); got != want {
			t.Errorf("source of %v: got %v, want %v", id, got, want)
		}
	}
}

// TestNiceIsTheProcesssOwn: by default the nice value is the one that the process has on
// the CPU, and follows it.
func TestNiceIsTheProcesssOwn(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	p := startShim(t, socket, "cuda")
	pid := p.Process.Pid
	if err := unix.Setpriority(unix.PRIO_PROCESS, pid, 7); err != nil {
		t.Fatal(err)
	}
	d.readNice()
	if got := p.described(d).Attrs; got.Given() != attr.Must("nice=7") || got.Source(attr.Nice) != attr.FromProcess {
		t.Errorf("after renice: got %v with nice from %v, want nice=7 from %v", got.Given(), got.Source(attr.Nice), attr.FromProcess)
	}
	p.set(t, d, "nice=-5")
	d.readNice()
	check(t, "set", p.described(d), "nice=-5", attr.FromDefault)
}

// TestProcessOverridesItsOwnerOnIdempotent: what a process says about its own commands
// overrides its owner's hint, as it does in the shim.
func TestProcessOverridesItsOwnerOnIdempotent(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	p := startShim(t, socket, "cuda")
	if got, err := d.Hint(ourselves, p.Process.Pid, api.Hint{Values: attr.Must("idempotent=true")}); err != nil || !got.Attrs.Bool(attr.Idempotent) {
		t.Fatalf("the owner's hint: got %v, %v", got.Attrs.Given(), err)
	}
	p.send("hint %d 0", shimpage.HintIdempotent)
	eventually(t, "the process says no", func() bool { return !p.described(d).Attrs.Bool(attr.Idempotent) })
	p.send("hint %d 1", shimpage.HintIdempotent)
	eventually(t, "the process says yes", func() bool { return p.described(d).Attrs.Bool(attr.Idempotent) })
}

// TestIgnoredAttributes: attributes without effect are listed with the reason.
func TestIgnoredAttributes(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	cuda, opencl := startShim(t, socket, "cuda"), startShim(t, socket, "opencl")
	marks := func(p *shimProcess) map[string]string {
		out := map[string]string{}
		for _, i := range p.described(d).Ignored {
			out[i.Name] = i.Mark
			if i.Reason == "" {
				t.Errorf("%s: got an ignored attribute without a reason", i.Name)
			}
		}
		return out
	}
	for _, c := range []struct {
		policy, attrs string
		p             *shimProcess
		want          map[string]string
	}{
		{"slo", "class=online slo=5ms predict=true", cuda, map[string]string{}},
		{"giveway", "class=online", cuda, map[string]string{"slo": "ignored by giveway"}},
		{"rr", "class=online", cuda, map[string]string{"slo": "ignored by rr", "class": "ignored by rr"}},
		{"rr", "slo=0 class=standard predict=false", cuda, map[string]string{"class": "ignored by rr"}},
		{"share", "share=20% weight=1", cuda, map[string]string{"class": "ignored by share"}},
		{"wfq", "paused=true bound=4", opencl, map[string]string{}},
		{"slo", "class=online late-entry=on predict=true", opencl, map[string]string{"predict": "ignored by opencl"}},
		{"slo", "class=batch late-entry=off", opencl, map[string]string{"predict": "ignored by opencl", "late-entry": "ignored in class batch"}},
		{"slo", "class=batch predict=true", cuda, map[string]string{"predict": "ignored in class batch", "share": "ignored by slo"}},
		// Attributes that the policy uses in other classes only.
		{"slo", "class=online weight=4 predict=false late-entry=auto", opencl, map[string]string{"weight": "ignored in class online"}},
		{"slo", "class=batch slo=5ms priority=3", opencl, map[string]string{"slo": "ignored in class batch", "priority": "ignored in class batch"}},
		{"slo", "class=idle", opencl, map[string]string{"slo": "ignored in class idle", "priority": "ignored in class idle"}},
		{"giveway", "class=standard", opencl, map[string]string{"slo": "ignored by giveway", "priority": "ignored in class standard", "weight": "ignored in class standard"}},
		{"wfq", "slo=0 priority=0", opencl, map[string]string{"class": "ignored by wfq"}},
	} {
		if _, err := d.SetPolicy(ourselves, api.Policy{Name: c.policy}); err != nil {
			t.Fatal(err)
		}
		for _, one := range strings.Fields(c.attrs) { // one by one: together some are refused
			c.p.set(t, d, one)
		}
		if got := marks(c.p); !maps.Equal(got, c.want) {
			t.Errorf("%s under %s: got %v, want %v", c.attrs, c.policy, got, c.want)
		}
	}
	if _, err := d.SetPolicy(ourselves, api.Policy{Name: "slo"}); err != nil {
		t.Fatal(err)
	}
	for attrs, want := range map[string]string{
		"class=batch share=10% weight=3": "share: policy slo does not use it; policies that do: share, share-process",
		"class=online slo=5ms bound=4":   "",
		"weight=3":                       "weight: policy slo uses it in class batch and idle only, and the process is of class standard",
	} {
		started, end, err := d.BeginRun(caller(os.Getpid()), api.Run{Values: attr.Must(attrs)})
		if err != nil {
			t.Fatal(err)
		}
		end()
		got := ""
		for _, i := range started.Ignored {
			got += i.Name + ": " + i.Reason
		}
		if got != want {
			t.Errorf("a run with %s: got %q, want %q", attrs, got, want)
		}
	}
}

// TestSetCanBeTakenBack: each attribute that set or hint gave can be cleared, and the process is
// as before.
func TestSetCanBeTakenBack(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	info, _ := sleeper(t)
	b.mustOffer(t, info)
	setRules(d, []config.Rule{{Attrs: attr.Must("class=batch weight=3")}})
	record := func() *process {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.processByID(info.ID())
	}
	before := record().attrs
	clear := func(id attr.ID) (v attr.Values) { v.Clear(id); return v }
	for _, id := range attr.IDs(attr.BySet) {
		value := id.Row().Max
		if id == attr.Class || id == attr.LateEntry || id == attr.Predict {
			value = id.Row().Min
		}
		for _, tree := range []bool{false, true} {
			if _, err := d.Change(ourselves, info.PID, api.Change{Values: id.Of(value), Tree: tree}); err != nil {
				t.Errorf("%v: %v", id, err)
				continue
			}
			if p := record(); p.attrs.Source(id) != attr.FromSet || !p.hasOrders {
				t.Errorf("%v: got it from %v, owned %v, want set", id, p.attrs.Source(id), p.hasOrders)
			}
			if _, err := d.Change(ourselves, info.PID, api.Change{Values: clear(id), Tree: tree}); err != nil {
				t.Errorf("%v: %v", id, err)
			}
			if p := record(); p.attrs != before || p.hasOrders {
				t.Errorf("%v, tree %v: got %v, owned %v; want %v as before", id, tree, p.attrs.Given(), p.hasOrders, before.Given())
			}
		}
	}
	for _, id := range attr.IDs(attr.ByHint) {
		if _, err := d.Hint(ourselves, info.PID, api.Hint{Values: id.Of(id.Row().Max)}); err != nil {
			t.Errorf("hint %v: %v", id, err)
		}
		if _, err := d.Hint(ourselves, info.PID, api.Hint{Values: clear(id)}); err != nil {
			t.Errorf("hint %v: %v", id, err)
		}
		if p := record(); p.attrs != before || !p.expectAt.IsZero() {
			t.Errorf("hint %v: got %v, want %v as before", id, p.attrs.Given(), before.Given())
		}
	}
	d.mu.Lock()
	trees := len(d.trees)
	d.mu.Unlock()
	if trees != 0 {
		t.Errorf("got %d trees, want none: all their attributes were cleared", trees)
	}
}

// TestAttributesThatNeedTheShim: each is accepted for a process without the shim, and reported
// as without effect.
func TestAttributesThatNeedTheShim(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	info, _ := sleeper(t)
	b.mustOffer(t, info)
	if _, err := d.Change(ourselves, info.PID, given("class=online")); err != nil {
		t.Fatal(err)
	}
	for _, id := range attr.IDs(attr.BySet) {
		if !id.Row().Shim {
			continue
		}
		p, err := d.Change(ourselves, info.PID, api.Change{Values: id.Of(id.Row().Max)})
		if err != nil {
			t.Errorf("%v: %v", id, err)
			continue
		}
		i := slices.IndexFunc(p.Ignored, func(i api.Ignored) bool { return i.Name == id.String() })
		if i < 0 || !strings.Contains(p.Ignored[i].Reason, "shim") {
			t.Errorf("%v: got %+v, want that it needs the shim", id, p.Ignored)
		}
	}
}
