package describe

import (
	"strings"
	"testing"

	"github.com/giveway/giveway/api"
)

func TestLog(t *testing.T) {
	alice, nobody := int64(1000), int64(4000)
	user := func(uid int64) string {
		if uid == alice {
			return "alice"
		}
		return ""
	}
	order := func(pid int, o api.Order) api.Entry { return api.Entry{Kind: api.KindOrder, PID: pid, Order: &o} }
	note := func(name, text string) api.Entry {
		return api.Entry{Kind: api.KindNote, Device: "GPU-a", PID: 5, Note: &api.Note{Name: name, Text: text}}
	}
	for _, c := range []struct {
		e    api.Entry
		want string
	}{
		{
			order(5, api.Order{Name: "set", UID: &alice, PID: 7, Command: "giveway", From: "class=batch", To: "class=idle"}),
			"alice (uid 1000, giveway, pid 7) changed process 5 from class=batch to class=idle",
		},
		{
			order(5, api.Order{Name: "set", UID: &nobody, PID: 7, From: "paused=false", To: "paused=true", Tree: true}),
			"uid 4000 (pid 7) paused process 5 and its descendants",
		},
		{order(5, api.Order{Name: "set", Address: "192.0.2.1", To: "paused=false"}), "a client at 192.0.2.1 resumed process 5"},
		{order(5, api.Order{Name: "set", UID: &alice, From: "paused=true", To: "paused=true"}), "alice (uid 1000) paused process 5: unchanged"},
		{order(5, api.Order{Name: "set", UID: &alice, From: "weight=3", To: "weight=3"}), "alice (uid 1000) set process 5 to weight=3: unchanged"},
		{order(0, api.Order{Name: "policy", UID: &alice, From: "rr", To: "rr"}), "alice (uid 1000) set the policy to rr: unchanged"},
		{order(0, api.Order{Name: "restore", UID: &alice, From: "native", To: "native"}), "alice (uid 1000) restored all devices, and set the policy to native: unchanged"},
		{order(0, api.Order{Name: "run", UID: &alice, To: "class=online"}), "alice (uid 1000) began a run with class=online"},
		{order(0, api.Order{Name: "policy", UID: &alice, From: "slo", To: "rr"}), "alice (uid 1000) changed the policy from slo to rr"},
		{order(0, api.Order{Name: "restore", UID: &alice, From: "slo", To: "native"}), "alice (uid 1000) restored all devices, and changed the policy from slo to native"},
		{
			order(5, api.Order{Name: "set", UID: &alice, To: "class=idle", Refused: true, Status: 403, Reason: "process 5 belongs to another user"}),
			"alice (uid 1000) was refused: set class=idle of process 5: process 5 belongs to another user (status 403)",
		},
		{
			order(0, api.Order{Name: "restore", Address: "192.0.2.1", Refused: true, Status: 403, Reason: "restore: the token is for reading only", LeftOut: 2}),
			"a client at 192.0.2.1 was refused: restore: the token is for reading only (status 403); 2 lines of this user before it left out, because there were too many",
		},
		{order(0, api.Order{Name: "connect", UID: &alice, Refused: true}), "alice (uid 1000) was refused: connect"},
		{order(0, api.Order{Name: "set"}), "another user gave an order: set"},
		{order(0, api.Order{Name: "set", Refused: true}), "an order of another user was refused: set"},
		{order(0, api.Order{Name: "config", From: "policy slo", To: "/etc/x.yaml: policy rr"}), "the configuration was read again: /etc/x.yaml: policy rr; before policy slo"},
		{
			order(0, api.Order{Name: "config", To: "/etc/x.yaml", Refused: true, Reason: `line 3: \"much\" is no share\n\x1b[2J`}),
			`the configuration /etc/x.yaml was refused, and the one before stays in force: line 3: "much" is no share??[2J`,
		},
		{note("inversion", "over after 1.2 s"), "priority inversion on device GPU-a: over after 1.2 s"},
		{note("overruled", "slo stalled"), "the policy of device GPU-a was overruled, and the vendor's scheduling is in force: slo stalled"},
		{note("resumed", ""), "the policy of device GPU-a decides again"},
		{note("guardian", "running"), "guardian: running"},
		{note("external", "it failed"), "the external policy of device GPU-a: it failed"},
		{note("action", "stop (interrupt) of process 5: refused"), "an action failed on device GPU-a: stop (interrupt) of process 5: refused"},
		{note("newer", ""), "newer of device GPU-a"},
		{api.Entry{Kind: api.KindSpan, Span: &api.Span{}}, ""},
	} {
		if got := Log(&c.e, user); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// TestLogHostile: whatever a text is, it stays one line of bounded length, without anything
// that a terminal obeys.
func TestLogHostile(t *testing.T) {
	uid := int64(1)
	for _, text := range []string{
		"\x1b[2J\x1b]0;owned\a", "a\nb\r\nc", strings.Repeat("x", 64<<10), "\xff\xfe\x80", `"quoted" \ back`, "\u202eright to left", "\u0085\u2028",
	} {
		for _, e := range []api.Entry{
			{PID: 5, Order: &api.Order{Name: text, UID: &uid, Command: text, From: text, To: text, Reason: text, Refused: true}},
			{PID: 5, Order: &api.Order{Name: "set", UID: &uid, Command: text, From: text, To: text}},
			{PID: 5, Order: &api.Order{Name: "config", From: text, To: text}},
			{PID: 5, Order: &api.Order{Name: text, Address: text}},
			{Device: text, Note: &api.Note{Name: text, Text: text}},
			{Device: text, Note: &api.Note{Name: "overruled", Text: text}},
		} {
			got := Log(&e, func(int64) string { return text })
			if len(got) > 2000 || strings.ContainsFunc(got, func(r rune) bool {
				return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x202e || r == 0x2028 || r == 0xfffd
			}) {
				t.Errorf("%.20q: got %.200q, %d bytes", text, got, len(got))
			}
		}
	}
}
