// Package clib loads a C library at run time and calls its functions, without cgo, so
// that one binary runs on machines with and without the library.
//
// A package declares the functions that it calls in a Table and loads the library once.
// It is never unloaded.
package clib

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// ErrNotFound means that the machine does not have the library.
var ErrNotFound = errors.New("not found")

// Function is a function of a library, as an index into its Table.
type Function int

// Table lists the functions of a library.
type Table struct {
	names    [][]string
	optional []bool
}

// Bind declares a function by its names in the library, the preferred one first. Where a
// name has a suffix, it is the ABI version that the caller's arguments have.
func (t *Table) Bind(names ...string) Function {
	t.names, t.optional = append(t.names, names), append(t.optional, false)
	return Function(len(t.names) - 1)
}

// BindOptional is Bind for a function that some versions do not have: see Library.Has.
func (t *Table) BindOptional(names ...string) Function {
	f := t.Bind(names...)
	t.optional[f] = true
	return f
}

// Name returns the preferred name of a function.
func (t *Table) Name(f Function) string { return t.names[f][0] }

// Library is a loaded library.
type Library struct {
	Path   string
	handle uintptr
	at     []uintptr // address of each function
}

// Load loads the first of the files that exists. The error wraps ErrNotFound if none does.
func (t *Table) Load(files ...string) (*Library, error) {
	// dlerror is per thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, path := range files {
		handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err == nil {
			return t.Find(&Library{Path: path, handle: handle})
		}
		// The missing file may also be a library that this one needs.
		if text := err.Error(); !strings.Contains(text, path) || !strings.Contains(text, "No such file") {
			return nil, fmt.Errorf("load %s: %w", path, err)
		}
	}
	return nil, fmt.Errorf("%s: %w", strings.Join(files, ", "), ErrNotFound)
}

// Find finds the table's functions in a library that is loaded already.
func (t *Table) Find(in *Library) (*Library, error) {
	l := &Library{Path: in.Path, handle: in.handle, at: make([]uintptr, len(t.names))}
	for f, names := range t.names {
		for _, name := range names {
			if at, err := purego.Dlsym(l.handle, name); err == nil {
				l.at[f] = at
				break
			}
		}
		if l.at[f] == 0 && !t.optional[f] {
			return nil, fmt.Errorf("%s has no %s: the library is too old or another one of the same name", l.Path, names[0])
		}
	}
	return l, nil
}

// Has reports whether the library has an optional function.
func (l *Library) Has(f Function) bool { return l.at[f] != 0 }

// Call calls a function and returns its result. Memory that the arguments point to stays
// alive, and does not move, until Call returns.
//
//go:uintptrescapes
func (l *Library) Call(f Function, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(l.at[f], args...)
	return r
}

// Text returns the static text that a function returns.
//
//go:uintptrescapes
func (l *Library) Text(f Function, args ...uintptr) string {
	r, _, _ := purego.SyscallN(l.at[f], args...)
	if r == 0 {
		return ""
	}
	return String(unsafe.Slice(*(**byte)(unsafe.Pointer(&r)), 1<<10))
}

// Preloaded returns a function of a preloaded library, found as a C program would
// find it.
func Preloaded(name string) (call func(args ...uintptr) int32, err error) {
	f, err := purego.Dlsym(purego.RTLD_DEFAULT, name)
	if err != nil || f == 0 {
		return nil, errors.New("no library of this process has " + name + ": was the process started by giveway run?")
	}
	return func(args ...uintptr) int32 {
		r, _, _ := purego.SyscallN(f, args...)
		return int32(r)
	}, nil
}

// String returns the bytes before the first zero byte. It reads no further, unlike
// bytes.IndexByte: memory after the library's text may not be mapped.
func String(b []byte) string {
	for i := range b {
		if b[i] == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
