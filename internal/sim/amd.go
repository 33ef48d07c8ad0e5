package sim

// The models of AMD's two schedulers. Nothing in them was measured by us: there
// was no AMD GPU. "6.12" is Linux 6.12's amdkfd and amdgpu, which was read;
// "published" is somebody else's figure; "assumed" is a guess, named so that it
// can be doubted and changed. What they leave out is in docs/AMD.md.
//
// Both are of the stock driver, whose DBG_TRAP suspend takes any number of queues
// of one program.

// amdHWS is an MI300X (gfx942). Any change is execute_queues_cpsch (6.12,
// kfd_device_queue_manager.c): UNMAP_QUEUES takes every queue of every program
// off, the CPU polls a fence until that is done, and a new RUNLIST maps the rest.
var amdHWS = Model{
	Name: "amd-hws", Doc: "AMD MI300X, hardware scheduler: a change unmaps every queue and maps back the rest; not measured",
	Slots: &SlotsModel{
		Slots:     24,      // 6.12: 4 pipes of 8 queues (gfx_v9_4_3.c) less 8 of the kernel's: num_cp_queues
		Quantum:   10 * ms, // 6.12: process_quantum of MAP_PROCESS (kfd_packet_manager_v9.c)
		Interrupt: true, RemapAll: true, Batch: true,
		Context: Context{
			Bytes:     304 * (0x80000 + 0x4000 + 0x10000 + 0x1000), // 6.12: of a CU (kfd_queue.c); published: 304 CUs
			Bandwidth: 5.3e12,                                      // published: peak, so the copying is a floor
			Fixed:     100 * us,                                    // assumed: the firmware's own part, each way
		},
	},
	// Fitted to the only published figures for a suspend and a resume through
	// DBG_TRAP, 400-500 and 300-400 us on an MI308X, which nobody has confirmed
	// (TestStockSuspendIsAsPublished). How they divide is assumed.
	Calls: Calls{
		Stop: Between(230*us, 300*us), Start: Between(200*us, 280*us), Gate: Between(20*us, 60*us), Effect: 0.5,
		PerQueue:     us,                    // assumed: a flag, and a MAP_QUEUES packet
		AfterStop:    Between(20*us, 60*us), // assumed: HDP flush, and a work item that is waited for
		CopyPerQueue: 10 * us,               // assumed: a control stack, of every queue of the program (copy_context_work_handler)
	},
	Gated: true, Bound: 1024,
}

// amdMES is a Radeon RX 7900 XTX (gfx1100). A change is a packet to the firmware
// for each queue, polled for (add_queue_mes, remove_queue_mes); the others go on.
var amdMES = Model{
	Name: "amd-mes", Doc: "AMD RX 7900 XTX, MES: each queue apart, the others go on; not measured",
	Slots: &SlotsModel{
		Slots:     8,       // 6.12: 4 pipes of 4 queues (gfx_v11_0.c) less 8 of the kernel's
		Quantum:   10 * ms, // 6.12: KFD_MES_PROCESS_QUANTUM; of queues of one program it is MESGangQuantum
		Interrupt: true, Batch: true,
		Context: Context{
			Bytes:     96 * (0x60000 + 0x4000 + 0x10000 + 0x1000), // 6.12; published: 96 CUs
			Bandwidth: 0.96e12,                                    // published: peak
			Fixed:     50 * us,                                    // assumed
		},
	},
	Calls: Calls{ // all assumed
		Stop: Between(20*us, 60*us), Start: Between(20*us, 60*us), Gate: Between(20*us, 60*us), Effect: 0.5,
		PerQueue:     100 * us,               // the packet's round trip
		AfterStop:    Between(40*us, 100*us), // memory fence, TLB flush, and the work item
		CopyPerQueue: 10 * us,
	},
	Gated: true, Bound: 1024,
}

// MESGangQuantum is how long one set of queues of a single program is served
// under MES (6.12: KFD_MES_GANG_QUANTUM).
const MESGangQuantum = ms
