// Package hqd parses the dump of hardware queue descriptors (HQDs) that amdkfd writes
// to debugfs. An HQD is a hardware slot for one compute queue.
//
// The format follows the driver's format strings in Linux 6.12. No dump of a real GPU
// was available.
package hqd

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// File is the path of the dump; only root can read it. To write the dump the driver
// selects one slot after another, which stalls all work on the GPU. Read it once to
// find a fault; never poll it.
const File = "/sys/kernel/debug/kfd/hqds"

// Slot is one hardware slot for compute queues.
type Slot struct {
	GPU      uint32 `json:"gpu"`   // KFD's gpu_id
	XCC      uint32 `json:"xcc"`   // "Inst" in the dump
	Pipe     uint32 `json:"pipe"`  // of the XCC
	Queue    uint32 `json:"queue"` // of the pipe; this is not a KFD queue id
	Known    bool   `json:"known"` // the register layout is known; otherwise the fields below are zero
	Active   bool   `json:"active"`
	VMID     uint32 `json:"vmid"`
	Priority uint32 `json:"priority"`
	Ring     uint64 `json:"ring"` // address of the queue's ring buffer in its process
}

// registerCount is the number of registers that the driver dumps for a compute slot on
// gfx9 to gfx11, from CP_MQD_BASE_ADDR to CP_HQD_PQ_WPTR_HI. A slot with another number
// of registers has an unknown layout.
const registerCount = 56

// Indices of registers in the dump of a slot.
const (
	regActive   = 2
	regVMID     = 3
	regPriority = 6
	regBase     = 8 // ring address in units of 256 bytes, low half; the high half follows
)

const (
	maxSlots     = 1 << 16 // more than any machine has
	maxRegisters = 4096
)

// Parse reads a dump. At the first line that the driver cannot have written it returns
// an error, together with the slots read so far.
func Parse(r io.Reader) ([]Slot, error) {
	p := parser{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), 4096)
	n := 0
	for lines.Scan() {
		n++
		if err := p.line(lines.Text()); err != nil {
			return p.slots, fmt.Errorf("line %d: %w", n, err)
		}
	}
	p.endSection()
	if err := lines.Err(); err != nil {
		return p.slots, fmt.Errorf("after line %d: %w", n, err)
	}
	return p.slots, nil
}

type parser struct {
	slots     []Slot
	gpu       uint32
	inGPU     bool // a "Node" line has been read
	section   section
	registers []uint32
	next      uint32 // expected address of the next register line
	gap       bool   // the register addresses are not contiguous
}

// section says what the register lines that follow belong to.
type section uint8

const (
	noSection    section = iota
	slotSection          // a compute slot
	otherSection         // the driver's own queue (HIQ), or an SDMA engine
)

func (p *parser) line(s string) error {
	if rest, ok := strings.CutPrefix(s, "    "); ok {
		return p.registerLine(rest)
	}
	p.endSection()
	var node, gpu, inst, pipe, queue, mec uint32
	switch {
	case scan(s, "Node %d, gpu_id %x:", &node, &gpu):
		p.gpu, p.inGPU, p.section = gpu, true, noSection
	case !p.inGPU:
		return fmt.Errorf("%.40q comes before any GPU", s)
	case scan(s, " Inst %d,  CP Pipe %d, Queue %d", &inst, &pipe, &queue):
		if len(p.slots) == maxSlots {
			return fmt.Errorf("more than %d slots", maxSlots)
		}
		p.slots = append(p.slots, Slot{GPU: p.gpu, XCC: inst, Pipe: pipe, Queue: queue})
		p.section = slotSection
	case scan(s, "   Inst %d, HIQ on MEC %d Pipe %d Queue %d", &inst, &mec, &pipe, &queue),
		scan(s, "  SDMA Engine %d, RLC %d", &pipe, &queue):
		p.section = otherSection
	case s == " Device is stopped":
		p.section = noSection
	default:
		return fmt.Errorf("%.40q is not a line of the driver's dump", s)
	}
	return nil
}

// scan reads numbers from a line that matches the format exactly.
func scan(s, format string, to ...*uint32) bool {
	args := make([]any, len(to))
	values := make([]any, len(to))
	for i, p := range to {
		args[i] = p
	}
	if n, err := fmt.Sscanf(s, format, args...); err != nil || n != len(to) {
		return false
	}
	for i, p := range to {
		values[i] = *p
	}
	return fmt.Sprintf(format, values...) == s
}

// registerLine reads an address and the values of up to eight registers from there on.
func (p *parser) registerLine(s string) error {
	address, values, ok := strings.Cut(s, ": ")
	at, err := strconv.ParseUint(address, 16, 32)
	fields := strings.Split(values, " ")
	if !ok || err != nil || len(address) != 8 || len(fields) > 8 || p.section == noSection {
		return fmt.Errorf("%.40q is not a register line, or is misplaced", s)
	}
	if len(p.registers) > 0 && uint32(at) != p.next {
		p.gap = true
	}
	for _, f := range fields {
		v, err := strconv.ParseUint(f, 16, 32)
		if err != nil || len(f) != 8 || len(p.registers) > maxRegisters {
			return fmt.Errorf("%.40q is not a register line", s)
		}
		p.registers = append(p.registers, uint32(v))
	}
	p.next = uint32(at) + 4*uint32(len(fields))
	return nil
}

// endSection decodes the registers of the section that ends here.
func (p *parser) endSection() {
	r := p.registers
	if p.section == slotSection && len(r) == registerCount && !p.gap {
		s := &p.slots[len(p.slots)-1]
		s.Known, s.Active, s.VMID, s.Priority = true, r[regActive]&1 != 0, r[regVMID]&0xf, r[regPriority]&0xf
		s.Ring = (uint64(r[regBase+1])<<32 | uint64(r[regBase])) << 8
	}
	p.registers, p.gap = r[:0], false
}
