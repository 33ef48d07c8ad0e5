package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/amd/lab/amdbench"
)

// TestBenchAMD compares the JSON output with a golden file.
func TestBenchAMD(t *testing.T) {
	out, errs, code := call("bench", "amd", "--traditional", "--batch", "--queues", "1,10,64", "--rounds", "20", "--seed", "1", "--json")
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	golden(t, "bench-amd.json", []byte(out))
}

func TestBenchAMDWays(t *testing.T) {
	for flags, want := range map[string]string{
		"":                      "native,one by one,stock suspend,batch",
		"--traditional --batch": "native,one by one,stock suspend,batch",
		"--traditional":         "native,one by one,stock suspend",
		"--batch":               "native,stock suspend,batch",
	} {
		args := append(strings.Fields("bench amd --queues 3 --rounds 2 --model amd-mes"), strings.Fields(flags)...)
		out, errs, code := call(append(args, "--json")...)
		var r amdbench.Result
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || len(r.Models) != 1 {
			t.Fatalf("%s: exit %d, %v: %s", flags, code, err, errs)
		}
		var ways []string
		for _, row := range r.Models[0].Rows {
			ways = append(ways, string(row.Way))
		}
		if got := strings.Join(ways, ","); got != want {
			t.Errorf("%q: got %s, want %s", flags, got, want)
		}
		text, errs, code := call(args...)
		if code != exitOK || errs != "" || !strings.HasPrefix(text, "Every figure is modelled") || strings.Count(text, "; modelled:\n") < 2 {
			t.Errorf("%q: got exit code %d, %s%s; want tables labelled as modelled", flags, code, text, errs)
		}
	}
}

func TestBenchAMDPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "amd.html")
	out, errs, code := call("bench", "amd", "--queues", "2,10", "--rounds", "2", "--html", path)
	if code != exitOK || !strings.Contains(out, "The page is in "+path+" (") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if page, err := os.ReadFile(path); err != nil || !bytes.HasSuffix(page, []byte("</html>\n")) {
		t.Errorf("got %d bytes, error %v; want a whole page", len(page), err)
	}
}

func TestBenchAMDErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--queues 0":                   "giveway: 0 queues; from 1 to 64 are modelled\n",
		"--queues 1,65":                "giveway: 65 queues; from 1 to 64 are modelled\n",
		"--queues x":                   "giveway: queues x is not a list of numbers such as 1,2,4\n",
		"--queues 9223372036854775808": "giveway: queues 9223372036854775808 is not a list of numbers such as 1,2,4\n",
		"--model amd":                  "giveway: there is no model \"amd\" of an AMD GPU; there are: [amd-hws amd-mes]\n",
		"--programs 0":                 "giveway: --programs and --rounds must be at least 1\n",
		"--rounds -4":                  "giveway: -4 rounds; from 1 to 100000 are possible\n",
		"extra":                        "giveway: bench amd takes no arguments; got \"extra\"",
		"--soak none.yaml":             "giveway: read none.yaml: no such file or directory\n",
		"--html /nowhere/x.h":          "giveway: write the page: ",
	} {
		out, errs, code := call(append([]string{"bench", "amd"}, strings.Fields(args)...)...)
		if code == exitOK || out != "" || !strings.HasPrefix(errs, want) {
			t.Errorf("%s: got exit code %d, %s%s; want %s", args, code, out, errs, want)
		}
	}
}

func TestBenchAMDSoak(t *testing.T) {
	path := file(t, `
name: small-soak
policy: hpf
warmup: 0
length: 2s
devices: [{model: amd-hws, slots: 4}]
clients:
  - {name: serve, class: online, priority: 1, arrival: {poisson: 5/s}, kernels: {time: 1ms}}
  - {name: fill, count: 6, process: fill, class: batch, arrival: {closed: 0, depth: 2}, kernels: {time: 5ms}, lifetime: 500ms, downtime: 10ms}
`)
	out, errs, code := call("bench", "amd", "--soak", path)
	if code != exitOK || !strings.Contains(out, "0 broken rules. Modelled.") || !strings.Contains(out, "gpu0    amd-hws") {
		t.Errorf("got exit code %d, %s%s; want the slots of gpu0 and no broken rules", code, out, errs)
	}
	out, _, _ = call("bench", "amd", "--soak", path, "--json")
	var v soakJSON
	if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.Devices) != 1 || v.Devices[0].Slots != 4 || v.Devices[0].Utilisation < 0.5 {
		t.Errorf("got error %v, %s; want one device with 4 slots", err, out)
	}
}
