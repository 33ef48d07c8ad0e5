package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoctorHQDs: the slots are told, with a warning before; what cannot be read or
// understood is an error.
func TestDoctorHQDs(t *testing.T) {
	old := hqdFile
	defer func() { hqdFile = old }()
	hqdFile = filepath.Join(t.TempDir(), "hqds")
	write := func(text string) {
		if err := os.WriteFile(hqdFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, errs, code := call("doctor", "--amd-hqds"); code != exitFailure || out != "" || !strings.Contains(errs, "for root") {
		t.Errorf("without a dump: exit %d, %s%s", code, out, errs)
	}
	registers := "    0000c914: 00000000 00000000 00000001 00000008 00000000 00000000 0000000b 00000000\n" +
		"    0000c934: 12345670 0000007f" + strings.Repeat(" 00000000", 6) + "\n"
	for i := range 5 {
		registers += "    0000c9" + []string{"54", "74", "94", "b4", "d4"}[i] + ":" + strings.Repeat(" 00000000", 8) + "\n"
	}
	write("Node 1, gpu_id c959:\n Inst 0,  CP Pipe 0, Queue 2\n" + registers + " Inst 0,  CP Pipe 1, Queue 0\n    0000c914: 00000001\n")
	out, errs, code := call("doctor", "--amd-hqds")
	const want = `GPU    XCC  PIPE  QUEUE  STATE      VMID  PRIORITY  RING
51545  0    0     2      active     8     11        0x7f1234567000
51545  0    1     0      not known  -     -         -
1 of 2 slots have a queue; of 1 the registers are not known.
`
	if code != exitOK || out != want || !strings.Contains(errs, "holds up everything") {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
	if out, _, code := call("doctor", "--amd-hqds", "--json"); code != exitOK || !strings.Contains(out, `"active": true`) {
		t.Errorf("exit %d, %s", code, out)
	}
	write("")
	if out, _, code := call("doctor", "--amd-hqds"); code != exitOK || !strings.Contains(out, "no slots") {
		t.Errorf("exit %d, %s", code, out)
	}
	write("\x1b[2J garbage\n")
	if out, errs, code := call("doctor", "--amd-hqds"); code != exitFailure || out != "" || strings.Contains(errs, "\x1b") {
		t.Errorf("exit %d, %q%q", code, out, errs)
	}
}
