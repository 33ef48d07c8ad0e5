package nvrm_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

func TestReadDriver(t *testing.T) {
	const proc, sys = "proc/driver/nvidia/version", "sys/module/nvidia/version"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  nvrm.Driver
	}{
		{
			"open module",
			map[string]string{proc: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22)  Thu Jan  1\nGCC version:  gcc version 13.3.0\n"},
			nvrm.Driver{Version: "580.159.04", Open: true},
		},
		{
			"closed module",
			map[string]string{proc: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: gcc version 12.2.0\n"},
			nvrm.Driver{Version: "535.129.03"},
		},
		{
			"a version of two numbers",
			map[string]string{proc: "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  550.67  Release Build\n"},
			nvrm.Driver{Version: "550.67", Open: true},
		},
		{"only the module's parameters", map[string]string{sys: "570.211.01\n"}, nvrm.Driver{Version: "570.211.01"}},
		{"the first is garbled", map[string]string{proc: "NVRM version: ?\n", sys: "590.48.01\n"}, nvrm.Driver{Version: "590.48.01"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range tt.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			if got, err := nvrm.ReadDriver(root); got != tt.want || err != nil {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
	if _, err := nvrm.ReadDriver(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no driver: got %v, want an error that wraps fs.ErrNotExist", err)
	}
}

func TestDriverBranch(t *testing.T) {
	for version, want := range map[string]bool{
		"535.288.01": true, "580.159.04": true, "580.999.01": true, "595.45.04": true,
		"610.57.04": false, "615.62.00": false, "620.06.00": false, "525.60.11": false, "58.1": false, "": false,
	} {
		if _, known := (nvrm.Driver{Version: version}).Branch(); known != want {
			t.Errorf("%q: known %v, want %v", version, known, want)
		}
	}
}

// TestDriversPage checks that docs/DRIVERS.md has the rows of the table.
func TestDriversPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/DRIVERS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range nvrm.Branches {
		row := fmt.Sprintf("| %d | %s to %s | %d | %s |", b.Number, b.First, b.Last, b.Releases, strings.Join(b.Ran, ", "))
		if b.Releases == 0 {
			row = fmt.Sprintf("| %d | none | 0 | |", b.Number)
		}
		row = strings.ReplaceAll(row, "|  |", "| |")
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/DRIVERS.md has no row that begins with %q", row)
		}
	}
}

// TestSelfTest runs the self-test on the driver double, and with each fault that it
// must notice. In every case nothing is left behind.
func TestSelfTest(t *testing.T) {
	control := nvrmtest.Control
	refused := nvrmtest.Fault{Status: nvrm.ErrNotSupported}
	for _, tt := range []struct {
		name  string
		call  nvrmtest.Call
		fault nvrmtest.Fault
		want  string // in the error; empty: the test passes
	}{
		{name: "a driver like those of the table"},
		{"no clients", nvrmtest.Alloc(nvgpu.NV01_ROOT_CLIENT), nvrmtest.Fault{Errno: unix.EACCES}, "make a client"},
		{"owner unknown", nvrmtest.Share(), refused, "owner of the client"},
		{"owner wrong", nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrInvalidClient}, "want this open file"},
		{"no devices", nvrmtest.Alloc(nvrm.ClassDevice), refused, "make a channel group"},
		{"no groups", nvrmtest.Alloc(nvrm.ClassChannelGroup), refused, "make a channel group"},
		{"no handle information", control(nvrmtest.GetHandleInfo), refused, "look up objects"},
		{"slice cannot be read", control(nvrmtest.GetTimeslice), refused, "set the slice"},
		{"slice cannot be set", control(nvrmtest.SetTimeslice), refused, "set the slice"},
		{"another size of DISABLE_CHANNELS", control(nvrmtest.DisableChannels), nvrmtest.Fault{Status: nvrm.ErrInvalidArgument}, "an unknown channel"},
		{"a wrong call is accepted", control(nvrmtest.DisableChannels), nvrmtest.Fault{Status: nvrm.ErrInvalidParamStruct}, "an unknown channel"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rm := nvrmtest.New(nvrmtest.Config{UUID: uuid})
			rm.Inject(tt.call, tt.fault)
			f := rm.Open()
			defer f.Close()
			err := nvrm.SelfTest(f)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if n := rm.Clients(); n != 0 {
				t.Errorf("%d clients are left", n)
			}
			if n := rm.Logged(); n != 0 {
				t.Errorf("%d lines in the kernel's log", n)
			}
		})
	}
}

// TestSelfTestSparesOthers checks that the self-test changes nothing of a process that
// uses the GPU.
func TestSelfTestSparesOthers(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{UUID: uuid})
	other, c := context(t, rm)
	f := rm.Open()
	defer f.Close()
	if err := nvrm.SelfTest(f); err != nil {
		t.Fatal(err)
	}
	if d, err := groupOf(other, c).Timeslice(); d != 2048e3 || err != nil {
		t.Errorf("slice of the other process: got %v, %v; want 2.048ms", d, err)
	}
	for _, ch := range c.Compute.Channels {
		if rm.Disabled(c.Client, ch) {
			t.Errorf("channel %v of the other process is disabled", ch)
		}
	}
}
