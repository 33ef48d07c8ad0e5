package discover

import (
	"github.com/cilium/ebpf/asm"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// The two programs are raw tracepoints in assembly. They need no compiler, no headers and no
// tracefs, and work where kprobes and fentry are refused. Their context is {struct pt_regs
// *regs, long nr or return value}.
//
// They run at every system call of the machine, so each returns as early as it can.

// enter stores the argument's address of a call of interest, by thread.
func (t *tracer) enter(r registers) asm.Instructions {
	const ( // on the stack
		args  = -24 // three registers
		value = -40 // argument u64, request u32, fd u32
		key   = -48
	)
	code := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 8, asm.DWord),
		asm.JNE.Imm(asm.R2, r.nr, "out"),
		asm.LoadMem(asm.R3, asm.R1, 0, asm.DWord),
		asm.Add.Imm(asm.R3, r.args),
	}
	code = append(code, readTo(args, 24, asm.FnProbeReadKernel)...)
	code = append(code,
		asm.JNE.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R6, asm.RFP, args+r.request, asm.Word),
		asm.And.Imm32(asm.R6, noDirection),
	)
	for _, request := range append([]uint32{t.requests.free}, t.requests.alloc...) {
		code = append(code, asm.JEq.Imm(asm.R6, int32(request), "ours"))
	}
	return append(code,
		asm.Ja.Label("out"),
		asm.LoadMem(asm.R1, asm.RFP, args+r.arg, asm.DWord).WithSymbol("ours"),
		asm.StoreMem(asm.RFP, value, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, value+8, asm.R6, asm.Word),
		asm.LoadMem(asm.R1, asm.RFP, args+r.fd, asm.Word),
		asm.StoreMem(asm.RFP, value+12, asm.R1, asm.Word),
		asm.FnGetCurrentPidTgid.Call(),
		asm.StoreMem(asm.RFP, key, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, t.inflight.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, value),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	)
}

// exit sends the argument of a call of interest that returned zero.
func (t *tracer) exit(r registers) asm.Instructions {
	const ( // on the stack
		nr     = -8
		key    = -16
		sample = key - sampleSize
		arg    = sample + 16
	)
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R3, asm.R6, 0, asm.DWord),
		asm.Add.Imm(asm.R3, r.call),
	}
	code = append(code, readTo(nr, 4, asm.FnProbeReadKernel)...)
	code = append(
		code,
		asm.JNE.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R1, asm.RFP, nr, asm.Word),
		asm.JNE.Imm(asm.R1, r.nr, "out"),

		// Remove the thread's entry, whatever the result of the call.
		asm.FnGetCurrentPidTgid.Call(),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.StoreMem(asm.RFP, key, asm.R7, asm.DWord),
		asm.LoadMapPtr(asm.R1, t.inflight.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R8, asm.R0, 0, asm.DWord),
		asm.LoadMem(asm.R9, asm.R0, 8, asm.Word),
		asm.LoadMem(asm.R1, asm.R0, 12, asm.Word),
		asm.StoreMem(asm.RFP, sample+4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, t.inflight.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapDeleteElem.Call(),
		asm.LoadMem(asm.R1, asm.R6, 8, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "out"),

		asm.RSh.Imm(asm.R7, 32), // the process
		asm.StoreMem(asm.RFP, sample, asm.R7, asm.Word),
		asm.StoreMem(asm.RFP, sample+8, asm.R9, asm.Word),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, sample+12, asm.R1, asm.Word),
	)
	for i := int16(0); i < maxArg; i += 8 {
		code = append(code, asm.StoreMem(asm.RFP, arg+i, asm.R1, asm.DWord))
	}
	code = append(
		code,
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.RSh.Imm(asm.R2, 16), // the argument's size is in the request
		asm.JGT.Imm(asm.R2, maxArg, "out"),
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, arg),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.FnProbeReadUser.Call(),
		asm.JNE.Imm(asm.R0, 0, "out"),

		// All frees are sent; of allocations only the classes that lead to a compute group.
		asm.JEq.Imm(asm.R9, int32(t.requests.free), "send"),
		asm.LoadMem(asm.R1, asm.RFP, arg+12, asm.Word),
		asm.JEq.Imm(asm.R1, nvrm.ClassChannelGroup, "send"),
		asm.JEq.Imm(asm.R1, nvrm.ClassSubdevice, "send"),
		asm.JLE.Imm(asm.R1, 0xa000, "out"), // see nvrm.IsChannel, nvrm.IsCompute
		asm.And.Imm(asm.R1, 0xff),
		asm.JEq.Imm(asm.R1, 0x6f, "send"),
		asm.JNE.Imm(asm.R1, 0xc0, "out"),

		asm.LoadMapPtr(asm.R1, t.ring.FD()).WithSymbol("send"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, sample),
		asm.Mov.Imm(asm.R3, sampleSize),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),

		asm.StoreImm(asm.RFP, key, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, t.lost.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
	)
	return append(code, asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return())
}

// readTo copies size bytes from the address in R3 to the stack.
func readTo(at, size int32, fn asm.BuiltinFunc) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, at),
		asm.Mov.Imm(asm.R2, size),
		fn.Call(),
	}
}
