package shim_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/giveway/giveway/shim"
)

// TestLibraryNeedsAndExports checks the library that is embedded in the giveway binary.
func TestLibraryNeedsAndExports(t *testing.T) {
	library, err := shim.Library()
	if err != nil {
		t.Skipf("no library: %v", err)
	}
	path := filepath.Join(t.TempDir(), "libgiveway.so")
	if err := os.WriteFile(path, library, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Not only the versions of symbols: packed relocations need a version without a symbol.
	libraries, err := f.DynamicVersionNeeds()
	if err != nil || len(libraries) == 0 {
		t.Fatalf("versions of %v, %v", libraries, err)
	}
	for _, library := range libraries {
		for _, need := range library.Needs {
			if !upTo(need.Dep, 2, 17) {
				t.Errorf("needs %s of %s, want at most glibc 2.17", need.Dep, library.Name)
			}
		}
	}
	if needs, err := f.ImportedLibraries(); err != nil || fmt.Sprint(needs) != "[libc.so.6]" {
		t.Errorf("needs %v, %v; want the C library only", needs, err)
	}
	exports, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, name := range []string{
		"dlsym", "dlvsym", "dlclose", "ioctl", "close", "closefrom", "close_range", "dup2", "dup3", "prctl",
	} {
		missing[name] = true
	}
	ofRuntimes := regexp.MustCompile(`^(cu[A-Z]|hip[A-Z]|_Z24hip|cl[A-Z]|ze[A-Z]|giveway_)`)
	for _, s := range exports {
		if s.Section != elf.SHN_UNDEF && !missing[s.Name] && !ofRuntimes.MatchString(s.Name) {
			t.Errorf("exports %s, which is not in the list", s.Name)
		}
		if s.Section != elf.SHN_UNDEF {
			delete(missing, s.Name)
		}
	}
	for name := range missing {
		t.Errorf("does not export %s", name)
	}
}

// upTo reports whether a version of glibc is at most major.minor.
func upTo(version string, major, minor int) bool {
	var a, b int
	_, err := fmt.Sscanf(version, "GLIBC_%d.%d", &a, &b)
	return err == nil && (a < major || a == major && b <= minor)
}

// testLookup compares what dlsym returns, and what calls reach, with and without the shim.
func testLookup(b builder) {
	t := b.t
	b.compile("libsecond.so", "-DSECOND", "-fPIC", "-shared", "test/lookup.c")
	b.compile("libfirst.so", "-DFIRST", "-fPIC", "-shared", "test/lookup.c")
	b.compile("lookup", "test/lookup.c", "-Wl,--no-as-needed", "-lfirst", "-lsecond")
	b.compile("third.so", "-DTHIRD", "-fPIC", "-shared", "-fno-inline", "-fsemantic-interposition", "test/lookup.c")
	args := []string{"lookup", b.path("libsecond.so"), b.path("third.so")}
	native, shimmed := start(t, noShim, b.dir, args...), start(t, "/nowhere", b.dir, args...)
	native.expectOK()
	shimmed.expectOK()
	for i, want := range native.output {
		if i >= len(shimmed.output) || shimmed.output[i] != want {
			t.Errorf("line %d: got %q with the shim, want %q", i, shimmed.output, want)
		}
	}
	if want := "first, then second"; native.output[0] != want {
		t.Errorf("without the shim: got %q, want %q", native.output[0], want)
	}
}

// testMusl runs a program of another C library with the shim.
func testMusl(b builder) {
	t := b.t
	if _, err := exec.LookPath("musl-gcc"); err != nil {
		const why = "no musl-gcc; install musl-tools"
		if os.Getenv("GIVEWAY_TEST_MUSL") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	source := b.path("hello.c")
	const hello = `#include <dlfcn.h>
#include <stdio.h>
int main(void) { return printf("ok %d\n", dlsym(RTLD_DEFAULT, "cuLaunchKernel") == 0 && dlsym(RTLD_DEFAULT, "printf") != 0), 0; }`
	if err := os.WriteFile(source, []byte(hello), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("musl-gcc", "-o", b.path("hello"), source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(b.path("hello"))
	cmd.Env = []string{"LD_PRELOAD=" + b.path("libgiveway.so")}
	out, err := cmd.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || lines[len(lines)-1] != "ok 1" {
		t.Errorf("%v: %s", err, out)
	}
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "giveway: ") {
		t.Errorf("got %q, want one line that says why the shim does nothing", lines)
	}
}
