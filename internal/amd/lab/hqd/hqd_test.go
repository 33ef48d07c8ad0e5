package hqd

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// writeRegisters writes registers as the driver does, eight per line.
func writeRegisters(b *strings.Builder, at uint32, registers []uint32) {
	for i, r := range registers {
		if i%8 == 0 {
			if i > 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(b, "    %08x: %08x", at+4*uint32(i), r)
		} else {
			fmt.Fprintf(b, " %08x", r)
		}
	}
	b.WriteString("\n")
}

// slotRegisters returns the registers of a compute slot.
func slotRegisters(active, vmid, priority uint32, ring uint64) []uint32 {
	r := make([]uint32, registerCount)
	r[2], r[3], r[6], r[8], r[9] = active, vmid, priority, uint32(ring>>8), uint32(ring>>40)
	return r
}

func sampleDump() string {
	var b strings.Builder
	b.WriteString("Node 1, gpu_id c959:\n   Inst 0, HIQ on MEC 2 Pipe 0 Queue 0\n")
	writeRegisters(&b, 0xc914, slotRegisters(1, 0, 15, 1<<40))
	b.WriteString(" Inst 0,  CP Pipe 0, Queue 0\n")
	writeRegisters(&b, 0xc914, slotRegisters(1, 8, 11, 0x7f12_3456_7000))
	b.WriteString(" Inst 0,  CP Pipe 1, Queue 2\n")
	writeRegisters(&b, 0xc914, slotRegisters(0, 0, 0, 0))
	b.WriteString("  SDMA Engine 0, RLC 1\n")
	writeRegisters(&b, 0x5180, make([]uint32, 19))
	b.WriteString("Node 2, gpu_id 1:\n Device is stopped\nNode 3, gpu_id fffffff0:\n Inst 7,  CP Pipe 3, Queue 7\n")
	writeRegisters(&b, 0xc914, make([]uint32, 57)) // a layout that is not known
	return b.String()
}

func TestParse(t *testing.T) {
	got, err := Parse(strings.NewReader(sampleDump()))
	want := []Slot{
		{GPU: 51545, Known: true, Active: true, VMID: 8, Priority: 11, Ring: 0x7f12_3456_7000},
		{GPU: 51545, Pipe: 1, Queue: 2, Known: true},
		{GPU: 0xfffffff0, XCC: 7, Pipe: 3, Queue: 7},
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if got, err := Parse(strings.NewReader("")); len(got) != 0 || err != nil {
		t.Errorf("empty dump: got %v, %v; want no slots", got, err)
	}
}

// TestParseRejectsGarbage checks that a line the driver cannot have written is an error
// that names the line.
func TestParseRejectsGarbage(t *testing.T) {
	const gpu, queue = "Node 1, gpu_id c959:\n", " Inst 0,  CP Pipe 0, Queue 0\n"
	for text, want := range map[string]string{
		queue:                                  "line 1: ",
		"\x00\xff\n":                           "line 1: ",
		gpu + "    0000c914: 00000000\n":       "line 2: ",
		gpu + queue + "    c914: 00000000\n":   "line 3: ",
		gpu + queue + "    0000c914: 1\n":      "line 3: ",
		gpu + queue + "    0000c914:\n":        "line 3: ",
		gpu + queue + "    0000c914: zzzzzzzz": "line 3: ",
		gpu + queue + "    0000c914: " + strings.Repeat("00000000 ", 8) + "00000000\n": "line 3: ",
		gpu + " Inst -1,  CP Pipe 0, Queue 0\n":                                        "line 2: ",
		gpu + " Inst 0,  CP Pipe 0, Queue 0 \n":                                        "line 2: ",
		gpu + "Node 1, gpu_id 100000000:\n":                                            "line 2: ",
		gpu + strings.Repeat("x", 5000):                                                "after line 1: ",
		gpu + strings.Repeat(queue, maxSlots+1):                                        "more than",
		gpu + queue + strings.Repeat("    0000c914: 00000000\n", 5000):                 "not a register line",
	} {
		if _, err := Parse(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got error %v, want %q in it", text, err, want)
		}
	}
	// Registers whose addresses are not contiguous have an unknown layout.
	var b strings.Builder
	b.WriteString(gpu + queue)
	writeRegisters(&b, 0xc914, slotRegisters(1, 8, 0, 0)[:24])
	writeRegisters(&b, 0xd000, make([]uint32, 32))
	if got, err := Parse(strings.NewReader(b.String())); err != nil || len(got) != 1 || got[0].Known || got[0].Active {
		t.Errorf("registers with a gap: got %+v, %v; want one unknown slot", got, err)
	}
}

// TestParseDoesNotPanic damages a dump at random places.
func TestParseDoesNotPanic(t *testing.T) {
	sample := sampleDump()
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		b := []byte(sample)
		for range 1 + r.IntN(4) {
			b[r.IntN(len(b))] = byte(r.IntN(256))
		}
		got, _ := Parse(strings.NewReader(string(b[:r.IntN(len(b)+1)])))
		if len(got) > 3 {
			t.Fatalf("got %d slots, want at most 3", len(got))
		}
	}
}
