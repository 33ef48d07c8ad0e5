package kfd

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// HQDFile is where root finds the kernel's dump of the hardware slots. To read it the
// driver selects one slot after another, which holds up everything on the GPU: it is
// for a look when something is wrong, and for nothing that looks twice.
const HQDFile = "/sys/kernel/debug/kfd/hqds"

// HQD is a hardware slot for compute queues as the dump has it.
type HQD struct {
	GPU      uint32 `json:"gpu"` // gpu_id
	XCC      uint32 `json:"xcc"` // "Inst"
	Pipe     uint32 `json:"pipe"`
	Queue    uint32 `json:"queue"` // of the pipe: no KFD queue's id
	Known    bool   `json:"known"` // the registers are those that we know; else what follows is not
	Active   bool   `json:"active"`
	VMID     uint32 `json:"vmid"`
	Priority uint32 `json:"priority"`
	Ring     uint64 `json:"ring"` // where the queue's ring lies, in its process
}

// hqdRegisters is how many the driver dumps of a compute slot, from CP_MQD_BASE_ADDR to
// CP_HQD_PQ_WPTR_HI, on gfx9 to gfx11. Any other number is of hardware that we do not
// know.
const hqdRegisters = 56

// Where registers are in the dump.
const (
	hqdActive   = 2
	hqdVMID     = 3
	hqdPriority = 6
	hqdBase     = 8 // of the ring, in units of 256 bytes; the upper half follows
)

// mostHQDs is more than any machine has.
const mostHQDs = 1 << 16

// ParseHQDs reads a dump. What it does not know it refuses, with what it has read until
// then.
func ParseHQDs(r io.Reader) ([]HQD, error) {
	p := hqdParser{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), 4096)
	n := 0
	for lines.Scan() {
		n++
		if err := p.line(lines.Text()); err != nil {
			return p.found, fmt.Errorf("line %d: %w", n, err)
		}
	}
	p.settle()
	if err := lines.Err(); err != nil {
		return p.found, fmt.Errorf("after line %d: %w", n, err)
	}
	return p.found, nil
}

type hqdParser struct {
	found     []HQD
	gpu       uint32
	named     bool // a GPU was
	in        part // whose registers come
	registers []uint32
	next      uint32 // the address that follows
	broken    bool   // the registers are not in a row
}

// part is what registers are of.
type part uint8

const (
	nobody part = iota
	slot        // a compute slot
	other       // the driver's own queue, or a copy engine's
)

func (p *hqdParser) line(s string) error {
	if rest, ok := strings.CutPrefix(s, "    "); ok {
		return p.dump(rest)
	}
	p.settle()
	var node, gpu, inst, pipe, queue, mec uint32
	switch {
	case scans(s, "Node %d, gpu_id %x:", &node, &gpu):
		p.gpu, p.named, p.in = gpu, true, nobody
	case !p.named:
		return fmt.Errorf("%.40q is of no GPU", s)
	case scans(s, " Inst %d,  CP Pipe %d, Queue %d", &inst, &pipe, &queue):
		if len(p.found) == mostHQDs {
			return fmt.Errorf("there are more than %d slots", mostHQDs)
		}
		p.found = append(p.found, HQD{GPU: p.gpu, XCC: inst, Pipe: pipe, Queue: queue})
		p.in = slot
	case scans(s, "   Inst %d, HIQ on MEC %d Pipe %d Queue %d", &inst, &mec, &pipe, &queue),
		scans(s, "  SDMA Engine %d, RLC %d", &pipe, &queue):
		p.in = other
	case s == " Device is stopped":
		p.in = nobody
	default:
		return fmt.Errorf("%.40q is nothing that the driver writes", s)
	}
	return nil
}

// scans reads a line that is exactly as the format has it.
func scans(s, format string, to ...*uint32) bool {
	args := make([]any, len(to))
	back := make([]any, len(to))
	for i, at := range to {
		args[i] = at
	}
	if n, err := fmt.Sscanf(s, format, args...); err != nil || n != len(to) {
		return false
	}
	for i, at := range to {
		back[i] = *at
	}
	return fmt.Sprintf(format, back...) == s
}

// dump reads a line of registers: an address, and up to eight that begin there.
func (p *hqdParser) dump(s string) error {
	address, values, ok := strings.Cut(s, ": ")
	at, err := strconv.ParseUint(address, 16, 32)
	fields := strings.Split(values, " ")
	if !ok || err != nil || len(address) != 8 || len(fields) > 8 || p.in == nobody {
		return fmt.Errorf("%.40q is no line of registers, or not where there is one", s)
	}
	if len(p.registers) > 0 && uint32(at) != p.next {
		p.broken = true
	}
	for _, f := range fields {
		v, err := strconv.ParseUint(f, 16, 32)
		if err != nil || len(f) != 8 || len(p.registers) > 4096 {
			return fmt.Errorf("%.40q is no line of registers", s)
		}
		p.registers = append(p.registers, uint32(v))
	}
	p.next = uint32(at) + 4*uint32(len(fields))
	return nil
}

// settle takes in the registers that were read.
func (p *hqdParser) settle() {
	r := p.registers
	if p.in == slot && len(r) == hqdRegisters && !p.broken {
		q := &p.found[len(p.found)-1]
		q.Known, q.Active, q.VMID, q.Priority = true, r[hqdActive]&1 != 0, r[hqdVMID]&0xf, r[hqdPriority]&0xf
		q.Ring = (uint64(r[hqdBase+1])<<32 | uint64(r[hqdBase])) << 8
	}
	p.registers, p.broken = r[:0], false
}
