package shim_test

import (
	"bytes"
	"debug/elf"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

var (
	hipPrefix = flag.String("hip", "", "where HIP is installed: the directory with bin/hipcc")
	hipTable  = flag.String("hip-table", "", "write a table of the results to this file")
)

// realHIP is an installation of AMD's own compiler, headers and runtime.
type realHIP struct {
	hipcc, include string
	library        string // libamdhip64, with its full version
	major, minor   int
	dir            string          // with libgiveway.so
	hooks          map[string]bool // the functions of HIP that libgiveway.so exports
	rows           []string        // of the table
}

// TestRealHIP checks the shim and giveway_guard.h with the real HIP, on a machine without an AMD GPU.
// `make hip-check` runs it.
func TestRealHIP(t *testing.T) {
	if *hipPrefix == "" {
		t.Skip("needs HIP: make hip-check")
	}
	h := findHIP(t, *hipPrefix)
	b := builder{t, h.dir}
	b.makeLibrary()
	for name := range dynamicSymbols(t, b.path("libgiveway.so")) {
		if isHIPFunction(name) {
			h.hooks[name] = true
		}
	}
	t.Run("guard", h.testGuard)
	t.Run("probes", h.testProbes)
	t.Run("types", h.testTypes)
	t.Run("symbols", h.testSymbols)
	t.Run("without a GPU", h.testRun)
	table := "| check | result |\n| --- | --- |\n" + strings.Join(h.rows, "")
	if *hipTable == "" {
		t.Log("\n" + table)
	} else if err := os.WriteFile(*hipTable, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (h *realHIP) row(t *testing.T, check, format string, args ...any) {
	result := fmt.Sprintf(format, args...)
	if t.Failed() {
		result = "**FAILED**"
	}
	h.rows = append(h.rows, fmt.Sprintf("| %s | %s |\n", check, result))
}

func findHIP(t *testing.T, prefix string) *realHIP {
	t.Helper()
	h := &realHIP{
		hipcc: filepath.Join(prefix, "bin/hipcc"), include: filepath.Join(prefix, "include"), dir: t.TempDir(), hooks: map[string]bool{},
	}
	for _, dir := range []string{"lib", "lib64", "lib/x86_64-linux-gnu"} {
		if file, err := filepath.EvalSymlinks(filepath.Join(prefix, dir, "libamdhip64.so")); err == nil {
			h.library = file
		}
	}
	_, version, _ := strings.Cut(filepath.Base(h.library), ".so.")
	if _, err := fmt.Sscanf(version, "%d.%d", &h.major, &h.minor); err != nil {
		t.Fatalf("no libamdhip64 with a version in %s: %q", prefix, h.library)
	}
	out, err := exec.Command(h.hipcc, "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("hipcc: %v\n%s", err, out)
	}
	compiler := regexp.MustCompile(`clang version ([\w.]+)`).FindSubmatch(out)
	if compiler == nil {
		t.Fatalf("hipcc names no clang: %s", out)
	}
	h.row(t, "versions", "libamdhip64 %s, clang %s", version, compiler[1])
	return h
}

// targets returns those of the GPUs that the installed device libraries support.
func (h *realHIP) targets(t *testing.T) (names []string) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "empty.hip")
	if err := os.WriteFile(source, []byte("#include <hip/hip_runtime.h>\n__global__ void k() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gfx90a", "gfx942", "gfx940", "gfx1100", "gfx1030"} {
		out, err := h.compile(source+".s", name, "-S", "--cuda-device-only", source)
		if err == nil {
			names = append(names, name)
		} else if !bytes.Contains(out, []byte("ROCm device library")) && !bytes.Contains(out, []byte("GPU arch")) &&
			!bytes.Contains(out, []byte("target ID")) {
			t.Fatalf("hipcc for %s: %v\n%s", name, err, out)
		}
	}
	return names
}

func (h *realHIP) compile(to, target string, args ...string) ([]byte, error) {
	// hipcc passes options for the linker even if nothing is linked.
	args = append([]string{"--offload-arch=" + target, "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-command-line-argument", "-o", to}, args...)
	return exec.Command(h.hipcc, args...).CombinedOutput()
}

// testGuard compiles the device part of giveway_guard.h for several GPUs and reads the instructions.
func (h *realHIP) testGuard(t *testing.T) {
	targets := h.targets(t)
	if len(targets) < 2 {
		t.Fatalf("the device libraries support %v only; want two GPUs", targets)
	}
	for _, target := range targets {
		file := filepath.Join(t.TempDir(), "guard.s")
		if out, err := h.compile(file, target, "-S", "--cuda-device-only", "test/guard_isa.hip"); err != nil {
			t.Errorf("%s: %v\n%s", target, err, out)
			continue
		}
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range guardProblems(string(code), target) {
			t.Errorf("%s: %s", target, problem)
		}
	}
	h.row(t, "giveway_guard.h", "%s: compiles; the stop word is read past the caches, the block's number reaches all waves", strings.Join(targets, ", "))
}

// guardProblems looks at the instructions of takeBlock and mayStop in guard_isa.hip, in the order in
// which they must be executed.
func guardProblems(code, target string) (problems []string) {
	// A read by system scope, which no cache that is not coherent may answer.
	system := map[string]string{"gfx90a": "glc", "gfx940": "sc0 sc1", "gfx942": "sc0 sc1", "gfx1030": "glc dlc", "gfx1100": "glc dlc"}[target]
	load := `_load_(dword|b32) .*` + system + `$`
	for kernel, want := range map[string][]string{
		"takeBlock": {
			`s_and_saveexec_b(32|64) |s_mov_b32 s\d+, exec_lo`, // only one thread asks
			load, `s_waitcnt vmcnt\(0\)`,
			`_atomic_add(_u32)? v\d+, .*(glc|sc0)$`, // returns the old value
			`s_waitcnt vmcnt\(0\)`,
			`ds_(write|store)_b32 `, `s_or_b(32|64) exec(_lo)?, exec`, // all threads again
			`s_waitcnt .*lgkmcnt\(0\)`, `s_barrier`, `ds_(read|load)_b32 `, `s_waitcnt .*lgkmcnt\(0\)`, `s_barrier`,
		},
		"mayStop": {load, `s_waitcnt vmcnt\(0\)`, load, `s_waitcnt vmcnt\(0\)`}, // each pass of the loop reads again
	} {
		_, body, ok := strings.Cut(code, "\n"+kernel+":")
		body, _, end := strings.Cut(body, ".Lfunc_end")
		if !ok || !end {
			problems = append(problems, kernel+" is missing")
			continue
		}
		lines := strings.Split(body, "\n")
		for _, w := range want {
			at := slices.IndexFunc(lines, func(line string) bool {
				instruction, _, _ := strings.Cut(line, ";")
				return regexp.MustCompile(w).MatchString(strings.TrimSpace(instruction))
			})
			if at < 0 {
				problems = append(problems, fmt.Sprintf("%s: no %s where it must be", kernel, w))
				break
			}
			lines = lines[at+1:]
		}
	}
	return problems
}

// testProbes compiles the programs that test order and guard on a GPU.
func (h *realHIP) testProbes(t *testing.T) {
	var names []string
	files, err := filepath.Glob("test/*.hip")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v; want at least three programs", files, err)
	}
	for _, file := range files {
		if filepath.Base(file) == "guard_isa.hip" {
			continue
		}
		if out, err := h.compile(filepath.Join(t.TempDir(), "program"), "gfx90a", file, "-pthread"); err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".hip"))
	}
	// The kernels of giveway-bench, which hiprtc compiles at run time.
	kernels := "../internal/hip/kernels.hip"
	if out, err := h.compile(filepath.Join(t.TempDir(), "kernels.s"), "gfx90a", "-S", "--cuda-device-only", "-include", "hip/hip_runtime.h", kernels); err != nil {
		t.Errorf("%s: %v\n%s", kernels, err, out)
	}
	h.row(t, "programs", "%s: compile and link; the kernels of giveway-bench compile", strings.Join(names, ", "))
}

func (h *realHIP) testTypes(t *testing.T) {
	alike, undeclared := compareHIPTypes(t, h.include)
	for _, name := range undeclared {
		if since, known := hipSince[name]; !known || !since.after(h.major, h.minor) {
			t.Errorf("the headers of HIP %d.%d do not declare %s", h.major, h.minor, name)
		}
	}
	for _, name := range hipStreamCalls(t, h.include) {
		if !h.hooks[name] && !slices.Contains(notCommands, name) {
			t.Errorf("%s takes a stream, but is neither in hip_calls.h nor known to launch nothing", name)
		}
	}
	h.row(t, "calls against the headers", "%d functions alike, %d are of later versions; no call with a stream is missing", alike, len(undeclared))
}

// hipVersion is the version of HIP that brought a function.
type hipVersion struct{ major, minor int }

func (v hipVersion) after(major, minor int) bool {
	return v.major > major || v.major == major && v.minor > minor
}

// hipSince has the functions that came after ROCm 5.2, from the version scripts of ROCm's clr.
var hipSince = func() map[string]hipVersion {
	since := map[string]hipVersion{}
	for version, names := range map[hipVersion]string{
		{5, 3}: `hipEventRecord_spt hipGraphLaunch_spt hipGraphUpload hipLaunchHostFunc hipLaunchHostFunc_spt hipMemcpy2DAsync_spt
			hipMemcpy2DFromArrayAsync_spt hipMemcpy2DToArrayAsync_spt hipMemcpy3DAsync_spt hipMemcpyFromArray_spt hipMemcpyFromSymbolAsync_spt
			hipMemcpyToSymbolAsync_spt hipMemset2DAsync_spt hipMemset3DAsync_spt hipMemsetAsync_spt hipStreamAddCallback_spt
			hipStreamBeginCapture_spt hipStreamEndCapture_spt`,
		{5, 5}: `hipModuleLaunchCooperativeKernel hipModuleLaunchCooperativeKernelMultiDevice`,
		{6, 1}: `hipGetProcAddress hipStreamBeginCaptureToGraph hipExtModuleLaunchKernel hipHccModuleLaunchKernel`,
		{6, 2}: `hipMemcpy2DArrayToArray hipMemcpyAtoA hipMemcpyAtoD hipMemcpyAtoHAsync hipMemcpyDtoA hipMemcpyHtoAAsync`,
		{6, 4}: `hipEventRecordWithFlags`,
		{6, 5}: `hipLaunchKernelExC hipDrvLaunchKernelEx`,
		{7, 1}: `hipMemsetD2D8 hipMemsetD2D8Async hipMemsetD2D16 hipMemsetD2D16Async hipMemsetD2D32 hipMemsetD2D32Async hipMemcpy3DBatchAsync
			hipMemcpy3DPeer hipMemcpy3DPeerAsync hipMemPrefetchAsync_v2 hipGetDriverEntryPoint hipGetDriverEntryPoint_spt`,
		{7, 2}: `hipMemPrefetchBatchAsync`,
		{7, 3}: `hipMemDiscardBatchAsync hipDrvMemDiscardBatchAsync hipMemDiscardAndPrefetchBatchAsync hipDrvMemDiscardAndPrefetchBatchAsync`,
	} {
		for _, name := range strings.Fields(names) {
			since[name] = version
		}
	}
	return since
}()

// notCommands take a stream, but put no work of the program on it.
var notCommands = strings.Fields(`
	hipExtLaunchKernelGGL hipExtStreamCreateWithCUMask hipExtStreamGetCUMask hipStreamCreate hipStreamCreateWithFlags hipStreamCreateWithPriority
	hipStreamGetFlags hipStreamGetFlags_spt hipStreamGetPriority hipStreamGetPriority_spt hipStreamGetDevice hipStreamGetId hipGetStreamDeviceId
	hipStreamGetCaptureInfo hipStreamGetCaptureInfo_spt hipStreamGetCaptureInfo_v2 hipStreamGetCaptureInfo_v2_spt hipStreamIsCapturing
	hipStreamIsCapturing_spt hipStreamUpdateCaptureDependencies hipStreamAttachMemAsync hipStreamGetAttribute hipStreamSetAttribute
	hipStreamCopyAttributes hipStreamWaitEvent hipStreamWaitEvent_spt hipStreamWaitValue32 hipStreamWaitValue64 hipStreamWriteValue32
	hipStreamWriteValue64 hipStreamBatchMemOp hipSignalExternalSemaphoresAsync hipWaitExternalSemaphoresAsync hipMallocAsync hipFreeAsync
	hipMallocFromPoolAsync hipMemMapArrayAsync hipKernelNameRefByPtr __hipPushCallConfiguration __hipPopCallConfiguration
	hipGraphicsMapResources hipGraphicsUnmapResources`)

// hipStreamCalls returns the functions of the header with a parameter of type hipStream_t.
func hipStreamCalls(t *testing.T, include string) (names []string) {
	t.Helper()
	cmd := exec.Command("gcc", "-E", "-P", "-w", "-x", "c", "-I"+include, "-D__HIP_PLATFORM_AMD__=1", "-")
	cmd.Stdin = strings.NewReader("#include <stdbool.h>\n#include <hip/hip_runtime_api.h>\n")
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(\w+)\s*\([^;{}()]*\bhipStream_t\b[^;{}()]*\)`).FindAllSubmatch(text, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) < 60 {
		t.Fatalf("found %d functions with a stream, want over 60: %v", len(names), names)
	}
	return names
}

// dynamicSymbols returns the symbols that a library defines, with their default versions.
func dynamicSymbols(t *testing.T, file string) map[string][]string {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	defined := map[string][]string{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && !s.VersionIndex.IsHidden() {
			defined[s.Name] = append(defined[s.Name], s.Version)
		}
	}
	return defined
}

// testSymbols checks that the library exports each hooked function under its name, in one version: a
// look-up of the shim's then finds the same function as a program that was linked with it.
func (h *realHIP) testSymbols(t *testing.T) {
	real := dynamicSymbols(t, h.library)
	versions, missing, found := map[string]bool{}, 0, 0
	for name := range h.hooks {
		switch got := real[name]; {
		case len(got) == 1 && strings.HasPrefix(got[0], "hip_"):
			versions[got[0]] = true
			found++
		case len(got) > 0:
			t.Errorf("%s has the versions %q; want one", name, got)
		case hipSince[name].after(h.major, h.minor), strings.HasPrefix(name, "_Z") && !hipSince[plainName(name)].after(h.major, h.minor):
			missing++
		default:
			t.Errorf("%s does not export %s", filepath.Base(h.library), name)
		}
	}
	order := slices.Sorted(maps.Keys(versions))
	if found < 80 {
		t.Fatalf("%d hooked functions found, want over 80", found)
	}
	h.row(t, "calls against the library", "%d exported, with versions %s to %s; %d are of other versions", found, order[0], order[len(order)-1], missing)
}

// testRun compares programs that are linked with the real runtime, and look it up, with and without
// the shim.
func (h *realHIP) testRun(t *testing.T) {
	b := builder{t, h.dir}
	if out, err := h.compile(b.path("linked"), "gfx90a", "test/hip_without_gpu.hip", "-pthread"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.compile("dlsym", "test/hip_lookup.c")
	names := slices.Sorted(maps.Keys(h.hooks))
	for _, args := range [][]string{{"linked"}, append([]string{"dlsym", h.library}, names...)} {
		native := h.output(t, noShim, b.dir, args, nil)
		if strings.Contains(native, "\n0 hipMalloc(") {
			t.Skip("this machine has an AMD GPU")
		}
		for name, prepare := range map[string]func(*shimpage.Page){
			"open": noSetup, "bound": bound(1, 1), "late entry": lateEntry(shimpage.LateOn),
		} {
			if got := h.output(t, newDaemon(t, prepare).Socket(), b.dir, args, nil); got != native {
				t.Errorf("%s, %s: printed\n%swithout the shim\n%s", args[0], name, got, native)
			}
		}
		if got := h.output(t, "/nowhere", b.dir, args, nil); got != native {
			t.Errorf("%s, no daemon: printed\n%swithout the shim\n%s", args[0], got, native)
		}
		// Held: this also shows that the program's calls arrive in the shim.
		d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease) })
		if got := h.output(t, d.Socket(), b.dir, args, func() {
			for process := 0; process < 1 || process < 2 && args[0] == "linked"; process++ { // it forks
				page := d.Page()
				waitUntilHeld(t, page)
				page.Release()
			}
		}); got != native {
			t.Errorf("%s, held: printed\n%swithout the shim\n%s", args[0], got, native)
		}
		if code := regexp.MustCompile(`\d+ bytes of code`).FindString(native); args[0] == "linked" && (code == "" || code[0] == '0') {
			t.Errorf("hiprtc compiled nothing:\n%s", native)
		}
	}
	h.row(t, "the runtime without a GPU", "linked and by dlsym, with a gate open, held, bounded, late, and without a daemon: output and exit code as without the shim, also of hiprtc")
}

// output runs a program, which exits with 7, and returns what it prints.
func (h *realHIP) output(t *testing.T, socket, dir string, args []string, meanwhile func()) string {
	t.Helper()
	p := prepare(t, socket, dir, args...)
	p.cmd.Env = append(p.cmd.Env, "LD_LIBRARY_PATH="+filepath.Dir(h.library))
	p.run()
	if meanwhile != nil {
		meanwhile()
	}
	var lines strings.Builder
	for line := range p.lines {
		lines.WriteString(line + "\n")
	}
	if err := p.cmd.Wait(); p.cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("%s: %v, want exit code 7; it printed\n%s", args[0], err, lines.String())
	}
	return lines.String()
}
