package browser

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestHostileNames: command lines with markup are text in the page.
func TestHostileNames(t *testing.T) {
	needBrowser(t)
	config := filepath.Join(t.TempDir(), "giveway.yaml")
	if err := os.WriteFile(config, []byte("nvidia: false\namd: false\nrules: [{match: {}, class: online}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The tests of the command have a program that uses a device through the daemon.
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "test", "-c", "-o", program, "./cmd/giveway")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	address, _, socket := start(t, "--config", config)
	const markup = `<img src=x onerror="window.pwned=1"><script>window.pwned=2</script><b>`
	for _, name := range []string{markup, `"'><svg onload=window.pwned=3>`, "\x1b[2J\n\u202e</td></table>", "${window.pwned=4}"} {
		cmd := exec.Command(program)
		cmd.Args = []string{name}
		cmd.Env = append(os.Environ(), "GIVEWAY_TEST_PROGRAM=x", "GIVEWAY_SOCKET="+socket)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	p := open(t, address, 1280, 900)
	p.until("the processes and their requests are shown", `document.querySelectorAll("#processes tbody tr").length === 4 && document.querySelectorAll("#latency canvas").length > 0`)
	p.until("a command line is shown as it is", `[...document.querySelectorAll("#processes td.command")].some(c => c.textContent === `+strconv.Quote(markup)+` && c.title === c.textContent)`)
	p.until("the log is shown", `document.querySelectorAll("#log li").length > 0`)
	if got := eval[string](p, `String(window.pwned)`); got != "undefined" {
		t.Errorf("a script in a command line ran: %s", got)
	}
	if n := eval[int](p, `document.querySelectorAll("img, svg, #processes b, td script").length`); n > 0 {
		t.Errorf("the page has %d elements from command lines: %s", n, eval[string](p, `document.getElementById("processes").innerHTML`))
	}
	p.shoot("hostile")
	p.check()
}
