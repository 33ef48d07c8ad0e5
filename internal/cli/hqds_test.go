package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoctorHQDs checks that slots are printed after a warning, and that a dump that is
// missing or malformed is an error.
func TestDoctorHQDs(t *testing.T) {
	old := hqdFile
	defer func() { hqdFile = old }()
	hqdFile = filepath.Join(t.TempDir(), "hqds")
	write := func(text string) {
		if err := os.WriteFile(hqdFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, errs, code := call("doctor", "--amd-hqds"); code != exitFailure || out != "" || !strings.Contains(errs, "needs root") {
		t.Errorf("without a dump: got exit %d, %s%s; want a failure that says it needs root", code, out, errs)
	}
	registers := "    0000c914: 00000000 00000000 00000001 00000008 00000000 00000000 0000000b 00000000\n" +
		"    0000c934: 12345670 0000007f" + strings.Repeat(" 00000000", 6) + "\n"
	for i := range 5 {
		registers += "    0000c9" + []string{"54", "74", "94", "b4", "d4"}[i] + ":" + strings.Repeat(" 00000000", 8) + "\n"
	}
	write("Node 1, gpu_id c959:\n Inst 0,  CP Pipe 0, Queue 2\n" + registers + " Inst 0,  CP Pipe 1, Queue 0\n    0000c914: 00000001\n")
	out, errs, code := call("doctor", "--amd-hqds")
	const want = `GPU    XCC  PIPE  QUEUE  STATE    VMID  PRIORITY  RING
51545  0    0     2      active   8     11        0x7f1234567000
51545  0    1     0      unknown  -     -         -
1 of 2 slots hold a queue; the register layout of 1 slots is unknown.
`
	if code != exitOK || out != want || !strings.Contains(errs, "stalls all work") {
		t.Errorf("got exit %d, warning %q and\n%s\nwant\n%s", code, errs, out, want)
	}
	if out, _, code := call("doctor", "--amd-hqds", "--json"); code != exitOK || !strings.Contains(out, `"active": true`) {
		t.Errorf("--json: got exit %d, %s; want an active slot", code, out)
	}
	write("")
	if out, _, code := call("doctor", "--amd-hqds"); code != exitOK || !strings.Contains(out, "no slots") {
		t.Errorf("empty dump: got exit %d, %s; want \"no slots\"", code, out)
	}
	write("\x1b[2J garbage\n")
	if out, errs, code := call("doctor", "--amd-hqds"); code != exitFailure || out != "" || strings.Contains(errs, "\x1b") {
		t.Errorf("garbage: got exit %d, %q%q; want a failure without escape characters", code, out, errs)
	}
}
