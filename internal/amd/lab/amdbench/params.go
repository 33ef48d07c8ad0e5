package amdbench

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/sim"
)

// parameters lists the parameters of the model and of the experiment, each with its source.
func parameters(m *sim.Model, processes int) []Parameter {
	s, c := m.Slots, &m.Calls
	own := hwsSources
	if !s.RemapAll {
		own = mesSources
	}
	quantum := own.quantum
	if !s.RemapAll && processes == 1 {
		quantum = own.gang
	}
	return []Parameter{
		{"HQD slots (num_cp_queues)", fmt.Sprint(s.Slots), FromDriver, own.slots},
		{"quantum when there are more queues than slots", micros(s.Quantum), FromDriver, quantum},
		{"queues that a change unmaps", own.change, FromDriver, "Linux 6.12, kfd_device_queue_manager.c"},
		{"wave state of a full device", fmt.Sprintf("%.1f MB", s.Context.Bytes/1e6), FromDriver, own.bytes},
		{"memory bandwidth, one way", fmt.Sprintf("%g TB/s", s.Context.Bandwidth/1e12), FromDriver, own.bandwidth},
		{"time of the firmware to unmap, and to map again", micros(s.Context.Fixed), Assumed, "no figure is known"},
		{"a stop call, without saving the waves", spread(c.Stop), own.callKind, own.call},
		{"a start call, without restoring the waves", spread(c.Start), own.callKind, own.call},
		{"added for each queue of a call", micros(c.PerQueue), Assumed, own.each},
		{"added by the stock suspend", spread(c.AfterStop), Assumed, own.after},
		{"added by the stock suspend for each queue of the process", micros(c.CopyPerQueue), Assumed, "its control stack is copied, stopped or not: Linux 6.12, copy_context_work_handler; the time is a guess"},
		{"from a request to the first call", fmt.Sprintf("%s to %s", micros(minDelay), micros(maxDelay)), Assumed, "a daemon that reads shared memory"},
		{"work of an online request, alone", micros(onlineWork), Assumed, "the experiment"},
		{"between requests", fmt.Sprintf("%s to %s", micros(minRest), micros(maxRest)), Assumed, "the experiment"},
		{"queues in slots", "share the device equally", Assumed, "hardware divides it by waves, in the order of their arrival"},
	}
}

// sources says where the parameters of a model are from.
type sources struct {
	slots, quantum, gang, change, bytes, bandwidth, call, each, after string
	callKind                                                          Kind
}

var (
	hwsSources = sources{
		slots:     "Linux 6.12, gfx_v9_4_3.c: 4 pipes of 8 queues, less 8 of the kernel's",
		quantum:   "Linux 6.12, kfd_packet_manager_v9.c: process_quantum 10",
		change:    "every queue on the GPU, once per call",
		bytes:     "Linux 6.12, kfd_queue.c: 610304 bytes a CU; MI300X data sheet: 304 CUs",
		bandwidth: "MI300X data sheet, peak: the copy takes at least this long",
		call:      "fitted to 'suspend 400-500 us, resume 300-400 us through DBG_TRAP on an MI308X' (a README without a log)",
		callKind:  FromElsewhere,
		each:      "a flag and a MAP_QUEUES packet; a guess",
		after:     "HDP flush, and waiting for a work item: Linux 6.12, suspend_queues; the time is a guess",
	}
	mesSources = sources{
		slots:     "Linux 6.12, gfx_v11_0.c: 4 pipes of 4 queues, less 8 of the kernel's",
		quantum:   "Linux 6.12, KFD_MES_PROCESS_QUANTUM",
		gang:      "Linux 6.12, KFD_MES_GANG_QUANTUM: the queues are of one process",
		change:    "one queue per packet; the others keep running",
		bytes:     "Linux 6.12, kfd_queue.c: 479232 bytes a CU; RX 7900 XTX data sheet: 96 CUs",
		bandwidth: "RX 7900 XTX data sheet, peak: the copy takes at least this long",
		call:      "no figure is known",
		callKind:  Assumed,
		each:      "the round trip of a packet; a guess",
		after:     "memory fence, TLB flush, and a work item: Linux 6.12, suspend_queues; the time is a guess",
	}
)

// published is figures of others, for comparison.
var published = []Published{
	{
		"README of a project on an MI308X, without a log", "DBG_TRAP suspend; resume",
		"400-500 us; 300-400 us. The HWS model is fitted to these.",
	},
	{
		"design notes for a batched unmap", "suspend 5 ms and resume 10 ms for each queue, and 15 to 150 times faster in a batch",
		"theoretical, according to the notes. They assume that the stock suspend handles one queue at a time; it is one update of the runlist for any number of queues of a process.",
	},
	{"GPreempt, ATC '25", "preemption with hints, mainly on NVIDIA", "within 40 us"},
}

func micros(d time.Duration) string {
	if d >= time.Millisecond && d%time.Millisecond == 0 {
		return fmt.Sprintf("%d ms", d/time.Millisecond)
	}
	return fmt.Sprintf("%d us", d/time.Microsecond)
}

func spread(d sim.Dist) string {
	if d.Kind == sim.Uniform {
		return fmt.Sprintf("%s to %s", micros(d.Min), micros(d.Max))
	}
	return micros(d.Mean)
}
