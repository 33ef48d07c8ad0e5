package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/describe"
	"github.com/giveway/giveway/internal/format"
)

// TestPsFitsTheTerminal: on a narrow terminal ps shortens the command, then leaves out
// columns, and no line wraps, however narrow it is.
func TestPsFitsTheTerminal(t *testing.T) {
	busy := slices.Clone(processes)
	busy[0].Attrs = from(attr.FromSet, "class=online weight=2 priority=-3 slo=10ms deadline=20ms")
	shares := map[describe.Key]float64{{PID: 812, Device: "GPU-a"}: 0.061}
	for _, c := range []struct {
		all     []api.Process
		wide    bool
		width   int
		columns string
	}{
		{processes[:1], false, 0, "PID USER CLASS GPU STATE SHARE SLO P99 BOUND SLICE GPU TIME CAN COMMAND"},
		{processes[:1], true, 20, "PID USER CLASS GPU STATE SHARE SLO P50 P99 BOUND SLICE GPU TIME CAN COMMAND"},
		{processes[:1], false, 120, "PID USER CLASS GPU STATE SHARE SLO P99 BOUND SLICE GPU TIME CAN COMMAND"},
		{processes[:1], false, 100, "PID USER CLASS GPU STATE SHARE SLO P99 BOUND SLICE GPU TIME COMMAND"},
		{processes[:1], false, 80, "PID CLASS GPU STATE SHARE SLO P99 GPU TIME COMMAND"},
		{processes[:1], false, 60, "PID CLASS GPU STATE SHARE P99 COMMAND"},
		{processes[:1], false, 40, "PID CLASS STATE COMMAND"},
		{busy, false, 120, "PID CLASS GPU STATE SHARE WEIGHT SLO P99 GPU TIME ATTRIBUTES COMMAND"},
		{processes[3:4], false, 80, "PID USER CLASS GPU STATE SHARE SLICE GPU TIME COMMAND"},
	} {
		text := processesText(c.all, shares, c.wide, screen{width: c.width})
		head, _, _ := strings.Cut(text, "\n")
		if got := strings.Join(strings.Fields(head), " "); got != c.columns {
			t.Errorf("width %d, wide %v: got columns %s, want %s", c.width, c.wide, got, c.columns)
		}
	}
	for width := 1; width < 200; width++ {
		for line := range strings.Lines(processesText(busy, shares, false, screen{width: width})) {
			if n := format.Width(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("width %d: got a line of %d columns: %s", width, n, line)
			}
		}
	}
}

// TestPsColours: colours are only where the screen has them, and change no column.
func TestPsColours(t *testing.T) {
	plain := processesText(processes, nil, false, screen{width: 100})
	painted := processesText(processes, nil, false, screen{width: 100, colour: true})
	if strings.Contains(plain, "\x1b") || !strings.Contains(painted, "\x1b[32monline") {
		t.Errorf("got\n%s\nand\n%q", plain, painted)
	}
	without := painted
	for _, style := range []string{"", "2", "31", "32", "33", "35", "36"} {
		without = strings.ReplaceAll(without, "\x1b["+style+"m", "")
	}
	if without != plain {
		t.Errorf("painted, without the styles: got\n%s\nwant\n%s", without, plain)
	}
}

// TestPsShowsAttributesWithoutEffect: such a value is in brackets, and its reason in another
// column.
func TestPsShowsAttributesWithoutEffect(t *testing.T) {
	p := api.Process{
		PID: 7, Attrs: from(attr.FromSet, "class=batch weight=3 slo=5ms bound=4"),
		Ignored: []api.Ignored{{Name: "slo", Mark: "ignored by rr"}},
	}
	cells := psCells(&p, describe.Use{}, nil)
	for head, want := range map[string]string{"WEIGHT": "3", "SLO": "(5ms)", "BOUND": "4", "ATTRIBUTES": "slo 5ms (ignored by rr)", "SHARE": "", "P99": ""} {
		if cells[head] != want {
			t.Errorf("%s: got %q, want %q", head, cells[head], want)
		}
	}
}

// TestPsShowsLateEntry: --wide shows what late entry did, if it did anything.
func TestPsShowsLateEntry(t *testing.T) {
	p := api.Process{PID: 7, Shim: &api.Shim{LateRequests: 120, LateEarly: 3, LateFor: 90 * time.Second}}
	all := []api.Process{p, {PID: 8, Shim: &api.Shim{}}, {PID: 9}}
	text := processesText(all, nil, true, screen{})
	if !strings.Contains(text, "LATE ENTRY") || !strings.Contains(text, "120 (3 wrong) 1m30s") {
		t.Errorf("got\n%s", text)
	}
	for name, text := range map[string]string{"narrow": processesText(all, nil, false, screen{}), "none late": processesText(all[1:], nil, true, screen{})} {
		if strings.Contains(text, "LATE") {
			t.Errorf("%s: got\n%s", name, text)
		}
	}
}

// TestPsJSON: the version, and shares beside the processes.
func TestPsJSON(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to whom the daemon shows everything")
	}
	startDaemon(t, &daemonNode{})
	out, errs, code := call("ps", "--json")
	var printed psJSON
	if err := json.Unmarshal([]byte(out), &printed); err != nil || code != exitOK {
		t.Fatalf("got exit %d, %v: %s%s", code, err, out, errs)
	}
	if printed.Version != psVersion || len(printed.Processes) != len(processes) || time.Since(printed.At) > time.Minute {
		t.Errorf("got version %d, %d processes, at %v", printed.Version, len(printed.Processes), printed.At)
	}
	if i := slices.IndexFunc(printed.Shares, func(s psShare) bool { return s.PID == 812 }); i < 0 || printed.Shares[i] != (psShare{812, "GPU-a", 0}) {
		t.Errorf("got shares %+v, want one of process 812, of nothing", printed.Shares)
	}
}

// TestStatesAreDocumented: ps --help and docs/TOP.md have every state that ps and top show.
func TestStatesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/TOP.md")
	if err != nil {
		t.Fatal(err)
	}
	help, _, _ := call("ps", "--help")
	for _, state := range []string{"running", "stopping", "stopped", "starting", "side by side", "paused", "floor", "inverted", "member", "lost"} {
		for name, text := range map[string]string{"ps --help": part(help, "STATE", "SHARE"), "docs/TOP.md": part(string(doc), "| STATE", "| WHY")} {
			if !strings.Contains(text, state) {
				t.Errorf("%s does not have the state %s", name, state)
			}
		}
	}
}

// part returns the part of a text from the first occurrence of one word to the next of another.
func part(text, from, to string) string {
	_, rest, _ := strings.Cut(text, from)
	before, _, _ := strings.Cut(rest, to)
	return before
}

// TestPsSchemaIsDocumented: docs/TOP.md has every key that ps --json prints.
func TestPsSchemaIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/TOP.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{psJSON{}, psShare{}, api.Process{}, api.Queue{}, api.Requests{}, api.Shim{}, api.Member{}, api.Ignored{}} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(v)) {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if key != "" && key != "-" && !strings.Contains(string(doc), "`"+key+"`") {
				t.Errorf("%T: docs/TOP.md does not have the key %s", v, key)
			}
		}
	}
	if !strings.Contains(string(doc), fmt.Sprintf("| `version` | %d.", psVersion)) {
		t.Errorf("docs/TOP.md does not have version %d", psVersion)
	}
}

// TestRedraw: on a terminal a list replaces the one before and scrolls nothing.
func TestRedraw(t *testing.T) {
	t.Setenv("TERM", "xterm")
	s := screen{terminal: true, height: 5}
	if got, want := s.redraw("a\nb\n"), "\x1b[Ha\x1b[K\r\nb\x1b[K\r\n\x1b[J"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	got := s.redraw("1\n2\n3\n4\n5\n6\n")
	if strings.Count(got, "\n") != 4 || !strings.Contains(got, "3\x1b[K\r\nand 3 lines more") {
		t.Errorf("got %q, want 4 lines", got)
	}
	if got := (screen{}).redraw("a\n"); got != "a\n\n" {
		t.Errorf("no terminal: got %q", got)
	}
	t.Setenv("TERM", "dumb")
	if got := s.redraw("a\n"); got != "a\n\n" {
		t.Errorf("a terminal without control sequences: got %q", got)
	}
}

// TestScreenOfAFile: what is no terminal has no colours; COLUMNS still limits lines.
func TestScreenOfAFile(t *testing.T) {
	t.Setenv("COLUMNS", "90")
	t.Setenv("TERM", "xterm")
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, want := screenOf(f), (screen{width: 90}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestUTF8 follows the user's locale.
func TestUTF8(t *testing.T) {
	for _, c := range []struct {
		all, ctype, lang string
		want             bool
	}{
		{"", "", "", false}, {"", "", "en_US.UTF-8", true}, {"C", "", "en_US.UTF-8", false}, {"", "C.utf8", "C", true},
	} {
		t.Setenv("LC_ALL", c.all)
		t.Setenv("LC_CTYPE", c.ctype)
		t.Setenv("LANG", c.lang)
		if got := hasUTF8(); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
