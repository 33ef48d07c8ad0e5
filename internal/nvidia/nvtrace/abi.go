package nvtrace

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

var le = binary.LittleEndian

// Controls that nvgpu does not define, from ctrl2080gr.h.
const (
	cmdBindV1 = 0x20801231 // NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID
	cmdBindV2 = 0x20801238 // NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2
)

// NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS and _GET_ID_INFO_V2_PARAMS, from
// ctrl0000gpu.h.
const (
	attachedIDs  = 32
	noID         = 0xffffffff
	sizeIDInfo   = 32
	idInfoGPU    = 0
	idInfoDevice = 8  // deviceInstance
	idInfoSub    = 12 // subDeviceInstance
)

// NV0080_ALLOC_PARAMETERS and NV2080_ALLOC_PARAMETERS begin with the instance. From cl0080.h
// and cl2080.h.
const (
	sizeDevice    = 56
	sizeSubdevice = 4
)

// NV_MEMORY_ALLOCATION_PARAMS, from nvos.h. 535 has 120 bytes with the same offsets, and
// copies only those.
const (
	sizeMemory  = 128
	memoryOwner = 0
	memoryAttr  = 24
	memoryAttr2 = 28
	memorySize  = 64

	attrLocationPCI     = 1 << 25 // NVOS32_ATTR_LOCATION
	attrNoncontiguous   = 1 << 27 // NVOS32_ATTR_PHYSICALITY
	attrCached          = 1 << 29 // NVOS32_ATTR_COHERENCY
	attr2UserIsReadOnly = 1 << 22 // NVOS32_ATTR2_PROTECTION_USER: required for an event buffer
)

// NV_EVENT_BUFFER_ALLOC_PARAMETERS, from cl90cd.h. Fields without a name here stay zero.
// notificationHandle must be zero: RM uses a value that it does not know as a kernel
// pointer.
const (
	sizeBuffer         = 72
	bufferRecordSize   = 16
	bufferRecordCount  = 20
	bufferNotification = 40
	bufferSubdevice    = 52
	bufferHeader       = 60
	bufferRecords      = 64
)

// NV_EVENT_BUFFER_HEADER, from cl90cd.h. The driver writes it and we read it.
const (
	sizeHeader  = 4096 // a page; the header is its first 32 bytes
	headerGet   = 0
	headerPut   = 4
	headerDrops = 16
)

// A record: NV_EVENT_BUFFER_RECORD_HEADER, then NV_EVENT_BUFFER_FECS_RECORD_V2
// of cl90cdfecs.h.
//
//	0     2        4        8    9     10     12          16   20        24         32
//	| type | subtype | varData | tag | vmid | seqno | context_id | pid | MIG ids | timestamp |
//
// RM writes 24 bytes behind the header of 8 without a check, so a record must have 32.
const (
	sizeRecord    = 32
	recordType    = 0
	recordTag     = 8
	recordSeq     = 10
	recordContext = 12
	recordPID     = 16
	recordTime    = 24

	typeV2 = 2
	typeV1 = 134
)

// Tags of records. A stock driver reports the two simple ones only.
const (
	tagSaveEnd      = 3
	tagContextStart = 5
	tagSimpleStart  = 6
	tagSimpleEnd    = 7
)

// Parameters of the event buffer's controls, from ctrl90cd.h.
const (
	sizeEnable  = 8 // enable u8 0, flags u32 4
	sizeGet     = 8 // recordBufferGet 0, varDataBufferGet 4
	enableFlags = 4
	keepOldest  = 1

	cmdEnable = nvgpu.NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS
	cmdGet    = nvgpu.NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET
	cmdFlush  = nvgpu.NV_EVENT_BUFFER_CTRL_CMD_FLUSH
	cmdClock  = nvgpu.NV2080_CTRL_CMD_TIMER_GET_TIME // {u64 ns}
)

// Parameters of the bind controls, from ctrl2080gr.h. V1 has no reason.
const (
	sizeBindV1     = 20
	sizeBindV2     = 24
	bindBuffer     = 0
	bindRecordSize = 4
	bindDetail     = 8 // zero: everything
	bindFilter     = 12
	bindAllUsers   = 16 // u8
	bindReason     = 20 // RM writes it on failure too
)

// Handles of the objects of our client. Any that RM does not give out would do.
const (
	handleDevice    = 0x5c000080
	handleSubdevice = 0x5c002080
	handleBuffers   = 0x5c100000 // 16 per attempt
)
