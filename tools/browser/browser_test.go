// Package browser tests the dashboard in a real browser: the real daemon on simulated
// devices, the real page.
package browser

import (
	"bufio"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var (
	shots     = flag.String("shots", "", "folder for screenshots; empty: none")
	measureIt = flag.Duration("measure", 0, "also measure the frames per second for so long, and print them")
	scenario  = flag.String("scenario", "scenarios/demo.yaml", "what the daemon simulates")
)

// start builds giveway, starts a daemon with some flags and the dashboard, and returns the two
// addresses and the daemon's socket.
func start(t *testing.T, flags ...string) (withRights, lookOnly, socket string) {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "giveway")
	build := exec.Command("go", "build", "-o", program, "./cmd/giveway")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	run := filepath.Join(dir, "run")
	if err := os.Mkdir(run, 0o700); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(run, "giveway.sock")
	begin := func(args ...string) *bufio.Reader {
		cmd := exec.Command(program, args...)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+socket)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		})
		return bufio.NewReader(out)
	}
	begin(append([]string{"daemon", "--socket", socket}, flags...)...)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		cmd := exec.Command(program, "policy")
		cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+socket)
		if cmd.Run() == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the daemon does not answer")
		}
	}
	lines := begin("dashboard", "--listen", "127.0.0.1:0")
	first, _ := lines.ReadString('\n')
	second, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the dashboard printed %q, %v", first, err)
	}
	address := regexp.MustCompile(`http://\S+`)
	return address.FindString(first), address.FindString(second), socket
}

// page is a page in a browser.
type page struct {
	*testing.T
	ctx context.Context
}

// open opens an address in a new browser.
func open(t *testing.T, address string, width, height int64) *page {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU)
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancelPage := chromedp.NewContext(allocator)
	t.Cleanup(cancelPage)
	p := &page{T: t, ctx: ctx}
	p.run(chromedp.EmulateViewport(width, height), chromedp.Navigate(address))
	p.until("the page has started", `"giveway" in window`)
	return p
}

// awaitSpans waits until the page shows what the simulated devices do.
func (p *page) awaitSpans() *page {
	p.Helper()
	p.until("spans and processes are shown", `[...giveway.model.devices.values()].some(d => d.spans.length > 100) && document.querySelectorAll("#processes tbody tr").length > 1`)
	return p
}

// do runs a script.
func do(script string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](script)
}

func (p *page) run(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.Fatal(err)
	}
}

// eval returns the value of an expression.
func eval[T any](p *page, expression string) T {
	p.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until an expression is true.
func (p *page) until(what, expression string) {
	p.Helper()
	for end := time.Now().Add(60 * time.Second); !eval[bool](p, expression); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("not within a minute: %s; the page says: %.800s", what, eval[string](p, "document.body.innerText"))
		}
	}
}

func (p *page) shoot(name string) {
	p.Helper()
	if *shots == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o644); err != nil {
		p.Fatal(err)
	}
}

// check checks that nothing went wrong in the page, and that it is not wider than the window.
func (p *page) check() {
	p.Helper()
	if wide := eval[bool](p, "document.documentElement.scrollWidth > innerWidth"); wide {
		p.Errorf("the page is %v px wide in a window of %v px", eval[int](p, "document.documentElement.scrollWidth"), eval[int](p, "innerWidth"))
	}
	if problems := eval[[]string](p, "giveway.problems"); len(problems) > 0 {
		p.Errorf("errors in the page: %q", problems)
	}
}

// drawn counts the colours of the first timeline's top row.
const drawn = `(() => {
  const c = document.querySelector(".timeline canvas"), d = c.getContext("2d").getImageData(0, 10, c.width, 1).data, all = new Set();
  for (let i = 0; i < d.length; i += 4) all.add(d.slice(i, i + 3).join());
  return all.size;
})()`

// needBrowser skips a test where there is no browser.
func needBrowser(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser; not in short runs")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "headless_shell"} {
		if _, err := exec.LookPath(name); err == nil {
			return
		}
	}
	t.Skip("no chromium on this machine")
}

func TestDashboard(t *testing.T) {
	needBrowser(t)
	withRights, lookOnly, _ := start(t, "--sim", *scenario)

	t.Run("wide", func(t *testing.T) {
		p := open(t, withRights, 1280, 900).awaitSpans()
		p.until("requests are known", `[...giveway.model.requests.values()].some(r => r.length > 20)`)
		p.until("the timeline shows several processes", drawn+" > 2")
		if hash := eval[string](p, "location.hash"); hash != "" {
			t.Errorf("the token stays in the address: %q", hash)
		}
		p.until("the waits and the latencies are shown", `document.querySelectorAll("#delays tr").length > 1 && document.querySelectorAll("#latency canvas").length > 0 && document.querySelectorAll("#log li").length > 3`)
		p.shoot("dashboard")
		p.check()
		keysWork(p)
		pauseAProcess(p)
		p.check()
	})
	t.Run("dark", func(t *testing.T) {
		p := open(t, withRights, 1280, 900).awaitSpans()
		dark := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}}
		if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, dark); err != nil {
			t.Fatal(err)
		}
		p.until("the page is dark", `getComputedStyle(document.body).backgroundColor.match(/\d+/g).every(c => +c < 60)`)
		time.Sleep(1500 * time.Millisecond) // the tables are drawn once a second
		p.shoot("dashboard-dark")
		p.check()
	})
	t.Run("phone", func(t *testing.T) {
		p := open(t, withRights, 390, 844).awaitSpans()
		p.until("the figures are shown", `document.querySelectorAll("#latency canvas").length > 0 && document.querySelector(".device").innerText.includes("switches")`)
		p.shoot("dashboard-phone")
		p.check()
	})
	t.Run("look only", func(t *testing.T) {
		p := open(t, lookOnly, 1280, 900).awaitSpans()
		p.until("the page says so", `document.getElementById("daemon").textContent.includes("to look only")`)
		if n := eval[int](p, `document.querySelectorAll("#processes button, #processes select").length`); n > 0 {
			t.Errorf("without the token the page has %d buttons that change something", n)
		}
		if n := eval[int](p, `giveway.model.requests.size + [...giveway.model.processes.values()].filter(p => p.command).length`); n > 0 {
			t.Errorf("without the token the page has %d requests or commands", n)
		}
		p.check()
	})
	if *measureIt > 0 {
		t.Run("measure", func(t *testing.T) {
			p := open(t, withRights, 1280, 900).awaitSpans()
			time.Sleep(*measureIt)
			t.Logf("%.1f frames/s, %.2f ms to draw one, %d spans", eval[float64](p, "giveway.stats.fps"), eval[float64](p, "giveway.stats.drawMs"),
				eval[int](p, "[...giveway.model.devices.values()].reduce((n, d) => n + d.spans.length, 0)"))
			p.shoot("measured")
			p.check()
		})
	}
}

// keysWork pauses, zooms, moves and follows by keyboard.
func keysWork(p *page) {
	p.Helper()
	for _, step := range []struct{ key, want string }{
		{" ", "!giveway.view.follow"},
		{"+", "giveway.view.width < 7000"},
		{"-", "giveway.view.width > 9900"},
		{"0", "giveway.view.follow && giveway.view.width === 10000"},
		{"?", `document.getElementById("keys").open`},
	} {
		p.run(chromedp.KeyEvent(step.key))
		if !eval[bool](p, step.want) {
			p.Errorf("after key %q: %s is not true", step.key, step.want)
		}
	}
	p.run(do(`document.getElementById("keys").close()`))
}

// pauseAProcess pauses a batch process by its button, after the question.
func pauseAProcess(p *page) {
	p.Helper()
	const button = `[...document.querySelectorAll("#processes tbody tr")].find(r => r.cells[1].textContent === "batch").querySelector("button")`
	p.run(do(button + ".click()"))
	if question := eval[string](p, `document.getElementById("question").textContent`); !strings.HasPrefix(question, "Pause process") {
		p.Errorf("got the question %q, want one before a change", question)
	}
	p.run(do(`document.querySelector("#confirm button.primary").click()`))
	p.until("a process is paused", `[...document.querySelectorAll("#processes tbody td")].some(c => c.textContent === "paused")`)
	p.until("the log has the order", `[...document.querySelectorAll("#log li")].some(l => l.textContent.includes("paused=true"))`)
}
