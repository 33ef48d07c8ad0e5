package policy

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the table of parameters into docs/POLICIES.md")

// TestDocsListEveryParameter checks the table of parameters in docs/POLICIES.md: users
// rely on the defaults and ranges.
func TestDocsListEveryParameter(t *testing.T) {
	const file, begin, end = "../docs/POLICIES.md", "| policy | parameter |", "\n\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString(begin + " default | values | what it is |\n| --- | --- | --- | --- | --- |")
	var rows []ParamInfo
	users := map[ParamInfo][]string{}
	for _, info := range List() {
		for _, p := range info.Params {
			if users[p] == nil {
				rows = append(rows, p)
			}
			users[p] = append(users[p], "`"+info.Name+"`")
		}
	}
	for _, p := range rows {
		fmt.Fprintf(&want, "\n| %s | `%s` | %s | %s | %s |", strings.Join(users[p], ", "), p.Name, p.Value, p.Range, p.Doc)
	}
	before, rest, found := strings.Cut(string(text), begin)
	got, after, _ := strings.Cut(rest, end)
	switch got = begin + got; {
	case !found:
		t.Fatalf("%s has no table that begins with %q", file, begin)
	case got == want.String():
	case *rewrite:
		if err := os.WriteFile(file, []byte(before+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has other parameters (go test ./policy -run Parameter -rewrite writes them); got:\n%s\nwant:\n%s", file, got, want.String())
	}
}

// TestDocsListEveryPolicyWithItsAttributes checks the table in docs/POLICIES.md.
func TestDocsListEveryPolicyWithItsAttributes(t *testing.T) {
	text, err := os.ReadFile("../docs/POLICIES.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	_, list, _ := strings.Cut(string(text), "| policy |")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && strings.HasPrefix(cells[1], " `") {
			rows[strings.Trim(cells[1], " `")] = strings.TrimSpace(cells[3])
		}
	}
	for _, info := range List() {
		if got, want := rows[info.Name], strings.Join(info.Uses, ", "); got != want {
			t.Errorf("%s: got attributes %q, want %q", info.Name, got, want)
		}
	}
	if len(rows) != len(table) {
		t.Errorf("got %d policies, want %d", len(rows), len(table))
	}
}
