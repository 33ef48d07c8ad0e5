// Package heaptest finds tables that grow: it counts, for tests, the elements of everything
// that a value keeps in memory.
package heaptest

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

// Elements is how many elements maps, slices and channels have, by the way to them. The
// elements of one table have one way in common, so that what each of them has is added up.
type Elements map[string]int

// Count counts what can be reached from values, by name. Nothing else may use them meanwhile.
// What only functions refer to is not seen.
func Count(values map[string]any) Elements {
	c := counter{seen: map[visit]bool{}, holds: map[reflect.Type]bool{}, out: Elements{}}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		c.walk(name, reflect.ValueOf(values[name]))
	}
	return c.out
}

// Grown lists what has at least more elements than before, one in a line.
func (e Elements) Grown(before Elements, more int) string {
	var out []string
	for _, way := range slices.Sorted(maps.Keys(e)) {
		if e[way]-before[way] >= more {
			out = append(out, fmt.Sprintf("%s: %d elements, were %d", way, e[way], before[way]))
		}
	}
	return strings.Join(out, "\n")
}

// Live returns how many bytes the heap has that are in use.
func Live() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one found to be unused, and had finalizers
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

type visit struct {
	at   uintptr
	kind reflect.Type
}

type counter struct {
	seen  map[visit]bool
	holds map[reflect.Type]bool // whether a type can refer to other values
	out   Elements
}

// first reports whether v, which is not nil, refers to a place that was not visited.
func (c *counter) first(v reflect.Value) bool {
	key := visit{v.Pointer(), v.Type()}
	if c.seen[key] {
		return false
	}
	c.seen[key] = true
	return true
}

func (c *counter) walk(way string, v reflect.Value) {
	if !v.IsValid() || !c.refers(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Interface:
		c.walk(way, v.Elem())
	case reflect.Pointer:
		if !v.IsNil() && c.first(v) {
			c.walk(way, v.Elem())
		}
	case reflect.Struct:
		if target := atomicTarget(v); target.IsValid() {
			c.walk(way, target)
			return
		}
		for i := range v.NumField() {
			c.walk(way+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case reflect.Array:
		c.elements(way, v)
	case reflect.Slice:
		if !v.IsNil() && c.first(v) {
			c.out[way] += v.Len()
			c.elements(way+"[]", v)
		}
	case reflect.Map:
		if !v.IsNil() && c.first(v) {
			c.out[way] += v.Len()
			for i := v.MapRange(); i.Next(); {
				c.walk(way+"[]", i.Key())
				c.walk(way+"[]", i.Value())
			}
		}
	case reflect.Chan:
		if !v.IsNil() && c.first(v) {
			c.out[way] += v.Len()
		}
	}
}

func (c *counter) elements(way string, v reflect.Value) {
	if c.refers(v.Type().Elem()) {
		for i := range v.Len() {
			c.walk(way, v.Index(i))
		}
	}
}

// atomicTarget returns what an atomic.Pointer points to, which is not in its type.
func atomicTarget(v reflect.Value) reflect.Value {
	t := v.Type()
	if t.PkgPath() != "sync/atomic" || !strings.HasPrefix(t.Name(), "Pointer[") {
		return reflect.Value{}
	}
	of, _ := reflect.PointerTo(t).MethodByName("Load")
	return reflect.NewAt(of.Type.Out(0).Elem(), v.FieldByName("v").UnsafePointer())
}

// refers reports whether values of a type can refer to maps, slices or channels.
func (c *counter) refers(t reflect.Type) bool {
	known, ok := c.holds[t]
	if ok {
		return known
	}
	c.holds[t] = true // in case it contains itself
	switch t.Kind() {
	case reflect.Interface, reflect.Map, reflect.Slice, reflect.Chan:
	case reflect.Pointer, reflect.Array:
		c.holds[t] = c.refers(t.Elem())
	case reflect.Struct:
		refers := strings.HasPrefix(t.Name(), "Pointer[") && t.PkgPath() == "sync/atomic"
		for i := range t.NumField() {
			refers = c.refers(t.Field(i).Type) || refers
		}
		c.holds[t] = refers
	default:
		c.holds[t] = false
	}
	return c.holds[t]
}
