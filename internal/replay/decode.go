package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/giveway/giveway/sched"
)

// maxDepth is how deep values may contain each other.
const maxDepth = 1000

// maxDecoded is how much memory the values of one block may take, in bytes. A struct takes one
// byte in the file if it is zero, so a small file can stand for much memory.
const maxDecoded = 256 << 20

var errDamaged = errors.New("the recording is damaged")

// decoder reads what an encoder wrote. After the first mistake it reads zeros.
type decoder struct {
	rest     []byte
	pointers []reflect.Value
	choice   sched.PolicyChoice // the last one
	depth    int
	decoded  int // bytes of memory that values took
	err      error
}

func (d *decoder) fail() {
	if d.err == nil {
		d.err = errDamaged
	}
	d.rest = nil
}

// charge counts memory that n values of a type are about to take, and reports whether they may.
func (d *decoder) charge(n int, size uintptr) bool {
	if size > 0 && n > (maxDecoded-d.decoded)/int(size) {
		if d.err == nil {
			d.err = fmt.Errorf("%w: it needs more than %d MiB of memory", errDamaged, maxDecoded>>20)
		}
		d.rest = nil
		return false
	}
	d.decoded += n * int(size)
	return true
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// count reads a number of items, of which each takes at least a byte.
func (d *decoder) count() int {
	n := d.uint()
	if n > uint64(len(d.rest)) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) bytes(n int) []byte {
	if n > len(d.rest) {
		d.fail()
		return make([]byte, min(n, 8))
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) text() string {
	n := d.count()
	if d.err != nil {
		return ""
	}
	return string(d.bytes(n))
}

func (d *decoder) value(v reflect.Value) {
	if d.depth++; d.depth > maxDepth {
		d.fail()
	}
	defer func() { d.depth-- }()
	if d.err != nil {
		return
	}
	v = accessible(v)
	if v.Type() == choiceType {
		d.readChoice()
		v.Set(reflect.ValueOf(d.choice))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(d.bytes(1)[0] != 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(d.int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		v.SetUint(d.uint())
	case reflect.Float32, reflect.Float64:
		v.SetFloat(math.Float64frombits(binary.LittleEndian.Uint64(d.bytes(8))))
	case reflect.String:
		v.SetString(d.text())
	case reflect.Struct:
		if isPlain(v.Type()) && d.bytes(1)[0] == 0 {
			v.SetZero()
			return
		}
		for i := range v.NumField() {
			d.value(v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			d.value(v.Index(i))
		}
	case reflect.Slice:
		d.slice(v)
	case reflect.Map:
		d.mapping(v)
	case reflect.Pointer:
		d.pointer(v)
	case reflect.Interface:
		d.policy(v)
	}
}

func (d *decoder) slice(v reflect.Value) {
	if keptByMake(v.Type()) {
		return
	}
	n := d.length()
	if n < 0 {
		v.SetZero()
		return
	}
	if !d.charge(n, v.Type().Elem().Size()) {
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), n, n))
	for i := range n {
		d.value(v.Index(i))
	}
}

// length reads the length of a slice or a map; -1 means nil.
func (d *decoder) length() int {
	n := d.uint()
	if n == 0 || n-1 > uint64(len(d.rest)) {
		if n != 0 {
			d.fail()
		}
		return -1
	}
	return int(n - 1)
}

func (d *decoder) mapping(v reflect.Value) {
	n := d.length()
	if n < 0 {
		v.SetZero()
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	size := v.Type().Key().Size() + v.Type().Elem().Size()
	for range n {
		if !d.charge(1, size) {
			return
		}
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		d.value(key)
		d.value(value)
		if d.err == nil {
			v.SetMapIndex(key, value)
		}
	}
}

// pointer reads a pointer. An object that is there already, because Make has made it, is
// filled in.
func (d *decoder) pointer(v reflect.Value) {
	n := d.uint()
	switch {
	case n == 0:
		v.SetZero()
	case n <= uint64(len(d.pointers)):
		p := d.pointers[n-1]
		if p.Type() != v.Type() {
			d.fail()
			return
		}
		v.Set(p)
	case n == uint64(len(d.pointers))+1:
		if !d.charge(1, v.Type().Elem().Size()+reflect.TypeFor[reflect.Value]().Size()) {
			return
		}
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.pointers = append(d.pointers, reflect.ValueOf(v.Interface()))
		d.value(v.Elem())
	default:
		d.fail()
	}
}

// policy reads the state of a policy into a new one.
func (d *decoder) policy(v reflect.Value) {
	if v.Type() != policyType && v.Type() != observerType || d.uint() == 0 {
		v.SetZero()
		return
	}
	if d.err != nil || d.choice.Make == nil {
		d.fail()
		return
	}
	made := reflect.ValueOf(d.choice.Make())
	if !made.Type().Implements(v.Type()) {
		d.fail()
		return
	}
	p := reflect.New(made.Type()).Elem() // a policy may be a pointer or a struct
	p.Set(made)
	d.value(p)
	if d.err == nil {
		v.Set(p)
	}
}

func (d *decoder) readChoice() {
	d.choice = sched.PolicyChoice{Name: d.text()}
	if d.choice.Name == "" || d.err != nil {
		return
	}
	params := map[string]string{}
	for range d.count() {
		name := d.text()
		params[name] = d.text()
	}
	if d.err != nil {
		return
	}
	if len(params) == 0 {
		params = nil
	}
	c, err := choose(d.choice.Name, params)
	if err != nil {
		d.err = fmt.Errorf("%w: %w", errDamaged, err)
		return
	}
	d.choice = c
}
