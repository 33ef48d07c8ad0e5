package shim_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestMessages: a message of the shim neither ends a program whose stderr has no reader, nor gets
// into a file that the program has opened in place of stderr.
func TestMessages(t *testing.T) {
	b := buildHarm(t)
	run := func(t *testing.T, how string, stderr func(*process)) {
		t.Helper()
		d := newDaemon(t, noSetup)
		p := prepare(t, d.Socket(), b.dir, "harm", "message", how)
		stderr(p)
		p.run()
		page := d.Page()
		line := p.expectOK()
		expectAllGated(t, page.Counters(), line)
	}
	broken := func(p *process) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		p.cmd.Stderr = w
		t.Cleanup(func() { _ = w.Close() })
	}
	t.Run("no reader", func(t *testing.T) { run(t, "pipe", broken) })
	t.Run("no reader, and a signal of the program's", func(t *testing.T) { run(t, "pending", broken) })
	t.Run("a file in its place", func(t *testing.T) { run(t, "file", func(*process) {}) })
	t.Run("a reader", func(t *testing.T) {
		var text bytes.Buffer
		run(t, "pipe", func(p *process) { p.cmd.Stderr = &text })
		if want := "giveway: the program restricts its own system calls"; !strings.HasPrefix(text.String(), want) {
			t.Errorf("stderr is %q, want %q", text.String(), want)
		}
	})
}

// TestEnvironment: the shim reads no variable of the environment after it was loaded. The program may
// change the environment at any time, and the C library has no lock for that.
func TestEnvironment(t *testing.T) {
	b := buildHarm(t)
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), b.dir, "harm", "environment")
	page := d.Page()
	line := p.expectOK()
	expectAllGated(t, page.Counters(), line)

	p = prepare(t, "", b.dir, "harm", "environment")
	var text bytes.Buffer
	p.cmd.Stderr = &text
	p.cmd.Env = append(p.cmd.Env, "LD_PRELOAD="+b.path("libgiveway.so"), "GIVEWAY_SOCKET=", "XDG_RUNTIME_DIR="+b.dir, "GIVEWAY_VERBOSE=1")
	p.run()
	p.expectOK()
	if want := "giveway: no daemon"; !strings.HasPrefix(text.String(), want) {
		t.Errorf("stderr is %q, want %q", text.String(), want)
	}
}
