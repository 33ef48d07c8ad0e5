package replay

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// The state of a scheduler is written field by field, as its Go types say. It has no names
// of fields, so it can be read only by a program with the same types; typesID names them.
//
// Pointers are numbered, so that two pointers to one object stay that. A policy is made anew
// by its name and then filled in: its functions are those of the new one. Slices of structs
// with functions, which are the parameters of policies, stay as the new one has them.

// choose returns the policy with a name. Tests add policies of their own.
var choose = policy.Choose

var (
	choiceType   = reflect.TypeFor[sched.PolicyChoice]()
	policyType   = reflect.TypeFor[sched.Policy]()
	observerType = reflect.TypeFor[sched.Observer]()
)

// typesID returns a number of all types that a recording has.
var typesID = sync.OnceValue(func() string {
	var b strings.Builder
	seen := map[reflect.Type]bool{}
	describe(&b, seen, reflect.TypeFor[sched.Scheduler]())
	describe(&b, seen, reflect.TypeFor[step]())
	for _, name := range policy.Names() {
		if c, err := policy.Choose(name, nil); err == nil {
			b.WriteString(name)
			describe(&b, seen, reflect.TypeOf(c.Make()))
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(b.String())))[:16]
})

// describe writes a type and those that it has.
func describe(b *strings.Builder, seen map[reflect.Type]bool, t reflect.Type) {
	fmt.Fprintf(b, "%v %v;", t, t.Kind())
	if seen[t] {
		return
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			b.WriteString(t.Field(i).Name)
			describe(b, seen, t.Field(i).Type)
		}
	case reflect.Map:
		describe(b, seen, t.Key())
		describe(b, seen, t.Elem())
	case reflect.Pointer, reflect.Slice, reflect.Array:
		describe(b, seen, t.Elem())
	}
}

// accessible returns a value that can be read and set although it is a field that is not
// exported.
func accessible(v reflect.Value) reflect.Value {
	if v.CanAddr() {
		return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
	}
	return v
}

// hasFunctions reports whether a value of the type has functions in it, not behind pointers.
func hasFunctions(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Func:
		return true
	case reflect.Struct:
		for i := range t.NumField() {
			if hasFunctions(t.Field(i).Type) {
				return true
			}
		}
	case reflect.Array:
		return hasFunctions(t.Elem())
	}
	return false
}

// keptByMake reports whether values of a type stay as a new policy has them.
func keptByMake(t reflect.Type) bool {
	return t.Kind() == reflect.Func || t.Kind() == reflect.Slice && t.Elem() != choiceType && hasFunctions(t.Elem()) && !hasChoice(t.Elem())
}

// hasChoice reports whether a struct has a policy choice, whose functions are made anew.
func hasChoice(t reflect.Type) bool {
	for i := 0; t.Kind() == reflect.Struct && i < t.NumField(); i++ {
		if t.Field(i).Type == choiceType {
			return true
		}
	}
	return false
}

// plainTypes has the structs for which isPlain was called.
var plainTypes sync.Map

// isPlain reports whether a struct has only numbers and texts. Of one that is zero only that
// is written: most parts of an event are.
func isPlain(t reflect.Type) bool {
	if known, ok := plainTypes.Load(t); ok {
		return known.(bool)
	}
	plain := hasOnlyData(t)
	plainTypes.Store(t, plain)
	return plain
}

func hasOnlyData(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if !hasOnlyData(t.Field(i).Type) {
				return false
			}
		}
		return true
	case reflect.Array:
		return hasOnlyData(t.Elem())
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface, reflect.Func:
		return false
	}
	return true
}

type pointerKey struct {
	address uintptr
	of      reflect.Type
}

// encoder writes values.
type encoder struct {
	out      []byte
	pointers map[pointerKey]uint64
	err      error
}

func (e *encoder) uint(v uint64) { e.out = binary.AppendUvarint(e.out, v) }

func (e *encoder) text(s string) {
	e.uint(uint64(len(s)))
	e.out = append(e.out, s...)
}

func (e *encoder) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		b := byte(0)
		if v.Bool() {
			b = 1
		}
		e.out = append(e.out, b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.out = binary.AppendVarint(e.out, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		e.uint(v.Uint())
	case reflect.Float32, reflect.Float64:
		e.out = binary.LittleEndian.AppendUint64(e.out, math.Float64bits(v.Float()))
	case reflect.String:
		e.text(v.String())
	case reflect.Struct:
		e.structure(v)
	case reflect.Array:
		for i := range v.Len() {
			e.value(v.Index(i))
		}
	case reflect.Slice:
		e.slice(v)
	case reflect.Map:
		e.mapping(v)
	case reflect.Pointer:
		e.pointer(v)
	case reflect.Interface:
		e.policy(v)
	case reflect.Func:
	default:
		e.err = errors.Join(e.err, fmt.Errorf("a value of type %v cannot be recorded", v.Type()))
	}
}

func (e *encoder) structure(v reflect.Value) {
	if v.Type() == choiceType {
		c := accessible(v).Interface().(sched.PolicyChoice)
		e.choice(&c)
		return
	}
	if isPlain(v.Type()) {
		if v.IsZero() {
			e.out = append(e.out, 0)
			return
		}
		e.out = append(e.out, 1)
	}
	for i := range v.NumField() {
		e.value(v.Field(i))
	}
}

func (e *encoder) slice(v reflect.Value) {
	if keptByMake(v.Type()) {
		return
	}
	if v.IsNil() {
		e.uint(0)
		return
	}
	e.uint(uint64(v.Len()) + 1)
	for i := range v.Len() {
		e.value(v.Index(i))
	}
}

func (e *encoder) mapping(v reflect.Value) {
	if v.IsNil() {
		e.uint(0)
		return
	}
	e.uint(uint64(v.Len()) + 1)
	keys := v.MapKeys()
	written := func(k reflect.Value) []byte {
		var of encoder
		of.value(k)
		return of.out
	}
	slices.SortFunc(keys, func(a, b reflect.Value) int { return bytes.Compare(written(a), written(b)) })
	for _, k := range keys {
		e.value(k)
		e.value(v.MapIndex(k))
	}
}

func (e *encoder) pointer(v reflect.Value) {
	if v.IsNil() {
		e.uint(0)
		return
	}
	key := pointerKey{v.Pointer(), v.Type()}
	n, known := e.pointers[key]
	if known {
		e.uint(n)
		return
	}
	n = uint64(len(e.pointers)) + 1
	e.pointers[key] = n
	e.uint(n)
	e.value(v.Elem())
}

// policy writes the state of a policy. Its name is that of the choice before it.
func (e *encoder) policy(v reflect.Value) {
	if v.Type() != policyType && v.Type() != observerType {
		e.err = errors.Join(e.err, fmt.Errorf("a value of type %v cannot be recorded", v.Type()))
		return
	}
	if v.IsNil() {
		e.uint(0)
		return
	}
	e.uint(1)
	e.value(v.Elem())
}

// choice writes the name and the parameters of a policy.
func (e *encoder) choice(c *sched.PolicyChoice) {
	e.text(c.Name)
	if c.Name == "" {
		return
	}
	if _, err := choose(c.Name, nil); err != nil {
		e.err = errors.Join(e.err, fmt.Errorf("policy %s cannot be replayed: this program does not compute it", c.Name))
		return
	}
	params := policy.Params(c.Make())
	e.uint(uint64(len(params)))
	for _, p := range params {
		e.text(p.Name)
		e.text(p.Value)
	}
}
