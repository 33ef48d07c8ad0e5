package policy

import (
	"os"
	"strings"
	"testing"
)

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
