package shim_test

import (
	"debug/dwarf"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// hipView is what a C file knows of HIP, from its debug information.
type hipView struct {
	functions map[string]*dwarf.FuncType
	constants map[string]int64 // enumerators whose names are HIP's
}

// compareHIPTypes compares each function and constant of the shim with HIP's headers. It returns how
// many functions are alike and which ones the headers do not declare.
func compareHIPTypes(t *testing.T, include string) (alike int, undeclared []string) {
	dir := t.TempDir()
	shim := hipView{map[string]*dwarf.FuncType{}, map[string]int64{}}
	for _, file := range []string{"hip.c", "hip_late.c"} {
		shim.read(t, compileForDebug(t, dir+"/"+file+".o", "-x", "c", "-std=gnu11", "-I.", file))
	}
	delete(shim.functions, "hipConfigureCall") // no header declares it any more, but the library has it
	real := hipView{map[string]*dwarf.FuncType{}, map[string]int64{}}
	real.readHeader(t, dir, "hip/hip_runtime_api.h", "c", include, shim)
	real.readHeader(t, dir, "hip/hip_ext.h", "c++", include, shim) // for C++ only
	if len(shim.functions) < 100 || len(real.functions) < 80 {
		t.Fatalf("found %d functions of the shim, %d of the headers; want over 100, over 80", len(shim.functions), len(real.functions))
	}
	for _, name := range slices.Sorted(maps.Keys(shim.functions)) {
		declared := real.functions[plainName(name)]
		if declared == nil {
			undeclared = append(undeclared, name)
			continue
		}
		if err := sameFunction(shim.functions[name], declared); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		alike++
	}
	return alike, undeclared
}

// plainName returns the name of a function in the source, for the symbol of a C++ function.
func plainName(symbol string) string {
	if m := regexp.MustCompile(`^_Z\d+(hip\w+?)P18ihip`).FindStringSubmatch(symbol); m != nil {
		return m[1]
	}
	return symbol
}

func compileForDebug(t *testing.T, object string, args ...string) *dwarf.Data {
	t.Helper()
	args = append(args, "-g", "-fno-eliminate-unused-debug-types", "-fno-eliminate-unused-debug-symbols", "-w", "-c", "-o", object)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", args, err, out)
	}
	f, err := elf.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// readHeader declares a pointer of each function that the header and the shim have, and checks the
// constants that both have.
func (v hipView) readHeader(t *testing.T, dir, header, language, include string, shim hipView) {
	t.Helper()
	source := fmt.Sprintf("#define __HIP_PLATFORM_AMD__ 1\n#include <stdbool.h>\n#include <%s>\n", header)
	if language == "c++" { // a template that hip_ext.h uses and declares for clang only
		source = "template <int n, class T> void pArgs(T, void *);\n" + source
	}
	options := []string{"-x", language, "-I" + include, dir + "/header.c"}
	if err := os.WriteFile(dir+"/header.c", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	expanded, err := exec.Command("gcc", append(options, "-E", "-P", "-dD", "-w")...).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc -E %s: %v\n%s", header, err, expanded)
	}
	declares := func(name, after string) bool {
		return regexp.MustCompile(`\b` + name + `\b` + after).Match(expanded)
	}
	names := map[string]bool{}
	for symbol := range shim.functions {
		names[plainName(symbol)] = true
	}
	for name := range names {
		if v.functions[name] == nil && declares(name, `\s*\(`) {
			source += fmt.Sprintf("__typeof__(%s) *real_%[1]s;\n", name)
		}
	}
	if language == "c" {
		for name, value := range shim.constants {
			if declares(name, "") {
				source += fmt.Sprintf("_Static_assert((long long)%s == %d, \"%[1]s\");\n", name, value)
			} else {
				t.Errorf("the headers have no constant %s", name)
			}
		}
	}
	if err := os.WriteFile(dir+"/header.c", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	v.read(t, compileForDebug(t, dir+"/header.o", options...))
}

// read collects typedefs named F_type, variables and members named F or real_F that point to
// functions, and enumerators.
func (v hipView) read(t *testing.T, d *dwarf.Data) {
	t.Helper()
	for r := d.Reader(); ; {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		switch e.Tag {
		case dwarf.TagEnumerator:
			if value, ok := e.Val(dwarf.AttrConstValue).(int64); ok && strings.HasPrefix(name, "hip") {
				v.constants[name] = value
			}
		case dwarf.TagTypedef, dwarf.TagVariable, dwarf.TagMember:
			function := strings.TrimPrefix(strings.TrimSuffix(name, "_type"), "real_")
			if at, ok := e.Val(dwarf.AttrType).(dwarf.Offset); ok && isHIPFunction(function) {
				v.add(t, d, function, at)
			}
		}
	}
}

func isHIPFunction(name string) bool {
	return strings.HasPrefix(name, "hip") || strings.HasPrefix(name, "_Z")
}

func (v hipView) add(t *testing.T, d *dwarf.Data, name string, at dwarf.Offset) {
	t.Helper()
	typ, err := d.Type(at)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := plain(typ).(*dwarf.PtrType); ok {
		typ = p.Type
	}
	if f, ok := plain(typ).(*dwarf.FuncType); ok {
		v.functions[name] = f
	}
}

// plain removes typedefs and qualifiers.
func plain(t dwarf.Type) dwarf.Type {
	for {
		switch u := t.(type) {
		case *dwarf.TypedefType:
			t = u.Type
		case *dwarf.QualType:
			t = u.Type
		default:
			return t
		}
	}
}

func sameFunction(shim, real *dwarf.FuncType) error {
	if len(shim.ParamType) != len(real.ParamType) {
		return fmt.Errorf("%d parameters, the header has %d", len(shim.ParamType), len(real.ParamType))
	}
	if err := passedAlike(shim.ReturnType, real.ReturnType); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	for i := range shim.ParamType {
		if err := passedAlike(shim.ParamType[i], real.ParamType[i]); err != nil {
			return fmt.Errorf("parameter %d: %w", i+1, err)
		}
	}
	return nil
}

var errDiffers = errors.New("differs")

// passedAlike checks that values of both types are passed in the same registers and memory. The shim
// has void * for all handles and int for all enumerations.
func passedAlike(shim, real dwarf.Type) error {
	shim, real = plain(shim), plain(real)
	differs := fmt.Errorf("%v, the header has %v: %w", shim, real, errDiffers)
	switch a := shim.(type) {
	case *dwarf.PtrType:
		b, ok := real.(*dwarf.PtrType)
		if !ok {
			return differs
		}
		return sameMembers(a.Type, b.Type)
	case *dwarf.StructType:
		if b, ok := real.(*dwarf.StructType); !ok || a.ByteSize != b.ByteSize || len(a.Field) != len(b.Field) {
			return differs
		}
		return sameMembers(a, real)
	}
	_, pointer := real.(*dwarf.PtrType)
	_, structure := real.(*dwarf.StructType)
	_, float := real.(*dwarf.FloatType)
	if pointer || structure || float || shim.Size() != real.Size() {
		return differs
	}
	return nil
}

// sameMembers checks that each member of a struct of the shim's is in the real struct at the same
// place. The shim leaves out members at the end that it does not use.
func sameMembers(shim, real dwarf.Type) error {
	a, ok := plain(shim).(*dwarf.StructType)
	if !ok || len(a.Field) == 0 {
		return nil // the shim does not look into it
	}
	b, ok := plain(real).(*dwarf.StructType)
	if !ok {
		return fmt.Errorf("%v, the header has %v: %w", shim, real, errDiffers)
	}
	for _, f := range a.Field {
		at := slices.IndexFunc(b.Field, func(g *dwarf.StructField) bool { return g.ByteOffset == f.ByteOffset })
		size := plain(f.Type).Size()
		array, ok := plain(f.Type).(*dwarf.ArrayType)
		if ok && at >= 0 && plain(b.Field[at].Type).Size() != size { // a grid's three members there
			size = plain(array.Type).Size()
		}
		if at < 0 || plain(b.Field[at].Type).Size() != size {
			return fmt.Errorf("member %s of %v is not in %v: %w", f.Name, a, b, errDiffers)
		}
	}
	return nil
}

// TestHIPTypesDiffer checks that the comparison notices a wrong row.
func TestHIPTypesDiffer(t *testing.T) {
	const source = `
struct three { unsigned x, y, z; };
struct part { unsigned grid[3]; void *stream; };
struct whole { unsigned x, y, z; void *stream; int more; };
struct other { unsigned x, y; void *stream; };
typedef int hipA_type(void *, struct three, int, struct part *);
typedef enum { E } e;
int (*real_hipSame)(struct three *, struct three, e, struct whole *);
int (*real_hipCount)(void *, struct three, int);
int (*real_hipWidth)(void *, struct three, unsigned long, struct whole *);
int (*real_hipPointer)(unsigned long, struct three, int, struct whole *);
int (*real_hipStruct)(void *, struct other, int, struct whole *);
int (*real_hipMember)(void *, struct three, int, struct other *);
int (*real_hipFloat)(void *, struct three, float, struct whole *);
`
	file := t.TempDir() + "/a.c"
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	v := hipView{map[string]*dwarf.FuncType{}, map[string]int64{}}
	v.read(t, compileForDebug(t, file+".o", file))
	if len(v.functions) != 8 {
		t.Fatalf("%d functions, want 8", len(v.functions))
	}
	for name, f := range v.functions {
		err := sameFunction(v.functions["hipA"], f)
		if name != "hipA" && (name == "hipSame") != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
