package shim_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/giveway/giveway/shim"
)

// TestLibrary looks at the library that the binary carries.
func TestLibrary(t *testing.T) {
	library, err := shim.Library()
	if err != nil {
		t.Skipf("nothing to look at: %v", err)
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
	// Not the symbols' versions alone: packed relocations, for one, are a need without one.
	libraries, err := f.DynamicVersionNeeds()
	if err != nil || len(libraries) == 0 {
		t.Fatalf("versions of %v, %v", libraries, err)
	}
	for _, library := range libraries {
		for _, need := range library.Needs {
			if !upTo(need.Dep, 2, 17) {
				t.Errorf("needs %s of %s: the library must load beside glibc 2.17", need.Dep, library.Name)
			}
		}
	}
	if needs, err := f.ImportedLibraries(); err != nil || fmt.Sprint(needs) != "[libc.so.6]" {
		t.Errorf("needs %v, %v; want the C library alone", needs, err)
	}
	exports, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range exports {
		known := false
		for _, prefix := range []string{"cu", "hip", "cl", "giveway_", "dlsym", "dlvsym", "ioctl", "dup2", "dup3"} {
			known = known || strings.HasPrefix(s.Name, prefix)
		}
		if s.Section != elf.SHN_UNDEF && !known {
			t.Errorf("exports %s", s.Name)
		}
	}
}

// upTo says whether a version of glibc's is at most the two numbers.
func upTo(version string, major, minor int) bool {
	var a, b int
	_, err := fmt.Sscanf(version, "GLIBC_%d.%d", &a, &b)
	return err == nil && (a < major || a == major && b <= minor)
}

// testLookup asks dlsym for this and that, with the shim before it and without.
func testLookup(b bench) {
	t := b.t
	b.compile("libsecond.so", "-DSECOND", "-fPIC", "-shared", "test/lookup.c")
	b.compile("libfirst.so", "-DFIRST", "-fPIC", "-shared", "test/lookup.c")
	b.compile("lookup", "test/lookup.c", "-Wl,--no-as-needed", "-lfirst", "-lsecond")
	args := []string{"lookup", b.path("libsecond.so")}
	native, shimmed := start(t, nil, b.dir, args...), start(t, &keeper{socket: "/nowhere"}, b.dir, args...)
	native.ok()
	shimmed.ok()
	for i, want := range native.said {
		if i >= len(shimmed.said) || shimmed.said[i] != want {
			t.Errorf("line %d: with the shim %q, without %q", i, shimmed.said, want)
		}
	}
	if want := "first, then second"; native.said[0] != want {
		t.Errorf("%q, want %q", native.said[0], want)
	}
}

// testMusl runs a program of another C library with the shim before it.
func testMusl(b bench) {
	t := b.t
	if _, err := exec.LookPath("musl-gcc"); err != nil {
		const why = "no musl-gcc here: musl-tools brings one"
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
		t.Errorf("want one line that says why, got %q", lines)
	}
}
