package sim

// The models of AMD's two schedulers. Nothing in them was measured by this project, which
// had no AMD GPU. "6.12" was read in the source of Linux 6.12's amdkfd and amdgpu;
// "published" is a figure from a publication; "assumed" is a guess. docs/AMD.md says what
// the models leave out.
//
// Both model the stock driver, whose DBG_TRAP suspend takes any number of queues of one
// process.

// amdHWS is an MI300X (gfx942). Any change is execute_queues_cpsch (6.12,
// kfd_device_queue_manager.c): UNMAP_QUEUES unmaps every queue of every process, the CPU
// polls a fence until that is done, and a new RUNLIST maps those that may run.
var amdHWS = Model{
	Name: "amd-hws", Doc: "AMD MI300X, hardware scheduler: a change unmaps every queue and maps back the rest; not measured",
	Slots: &SlotsModel{
		Slots:     24,      // 6.12: 4 pipes of 8 queues (gfx_v9_4_3.c) less 8 of the kernel's: num_cp_queues
		Quantum:   10 * ms, // 6.12: process_quantum of MAP_PROCESS (kfd_packet_manager_v9.c)
		Interrupt: true, RemapAll: true, Batch: true,
		Context: Context{
			Bytes:     304 * (0x80000 + 0x4000 + 0x10000 + 0x1000), // 6.12: of a CU (kfd_queue.c); published: 304 CUs
			Bandwidth: 5.3e12,                                      // published: peak, so the time of copying is a lower bound
			Fixed:     100 * us,                                    // assumed: the firmware's own time, in each direction
		},
	},
	// Fitted to the only published figures for suspend and resume through DBG_TRAP:
	// 400-500 and 300-400 us on an MI308X, not confirmed by others
	// (TestStockSuspendTakesThePublishedTime). How the time divides is assumed.
	Calls: Calls{
		Stop: Between(230*us, 300*us), Start: Between(200*us, 280*us), Gate: gateTime, Effect: 0.5,
		PerQueue:     us,                    // assumed: a flag, and a MAP_QUEUES packet
		AfterStop:    Between(20*us, 60*us), // assumed: HDP flush, and the wait for a work item
		CopyPerQueue: 10 * us,               // assumed: a control stack, of every queue of the process (copy_context_work_handler)
	},
	Gated: true, Bound: 1024,
}

// amdMES is a Radeon RX 7900 XTX (gfx1100). A change is one packet to the firmware for each
// queue (add_queue_mes, remove_queue_mes), which the driver polls for; other queues go on.
var amdMES = Model{
	Name: "amd-mes", Doc: "AMD RX 7900 XTX, MES: each queue apart, the others go on; not measured",
	Slots: &SlotsModel{
		Slots:     8,       // 6.12: 4 pipes of 4 queues (gfx_v11_0.c) less 8 of the kernel's
		Quantum:   10 * ms, // 6.12: KFD_MES_PROCESS_QUANTUM; for queues of one process it is MESGangQuantum
		Interrupt: true, Batch: true,
		Context: Context{
			Bytes:     96 * (0x60000 + 0x4000 + 0x10000 + 0x1000), // 6.12; published: 96 CUs
			Bandwidth: 0.96e12,                                    // published: peak
			Fixed:     50 * us,                                    // assumed
		},
	},
	Calls: Calls{ // all assumed
		Stop: Between(20*us, 60*us), Start: Between(20*us, 60*us), Gate: gateTime, Effect: 0.5,
		PerQueue:     100 * us,               // the packet's round trip
		AfterStop:    Between(40*us, 100*us), // memory fence, TLB flush, and the work item
		CopyPerQueue: 10 * us,
	},
	Gated: true, Bound: 1024,
}

// MESGangQuantum is how long one set of queues of a single process is served under MES
// (6.12: KFD_MES_GANG_QUANTUM).
const MESGangQuantum = ms
