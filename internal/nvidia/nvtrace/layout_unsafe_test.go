package nvtrace

import (
	"structs"
	"testing"
	"unsafe"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// Structs of the driver's headers that nvgpu does not define. The fields are in the order of
// the headers, so that the compiler computes the offsets.
type (
	idInfo struct { // NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS
		_                                                                                   structs.HostLayout
		gpuId, gpuFlags, deviceInstance, subDeviceInstance, sliStatus, boardId, gpuInstance uint32
		numaId                                                                              int32
	}
	header struct { // NV_EVENT_BUFFER_HEADER
		_                                              structs.HostLayout
		recordGet, recordPut                           uint32
		recordCount, recordDropcount, vardataDropcount uint64
	}
	recordV2 struct { // NV_EVENT_BUFFER_RECORD_HEADER, NV_EVENT_BUFFER_FECS_RECORD_V2
		_                                      structs.HostLayout
		kind, subtype                          uint16
		varData                                uint32
		tag, vmid                              uint8
		seqno                                  uint16
		contextID, pid                         uint32
		reserved                               uint16
		migGpuInstanceID, migComputeInstanceID uint8
		timestamp                              uint64
	}
	enableEvents struct { // NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMETERS
		_      structs.HostLayout
		enable bool
		flags  uint32
	}
	updateGet struct { // NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMETERS
		_                                 structs.HostLayout
		recordBufferGet, varDataBufferGet uint32
	}
	bindV1 struct { // NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS
		_                                                    structs.HostLayout
		hEventBuffer, recordSize, levelOfDetail, eventFilter uint32
		bAllUsers                                            bool
	}
	bindV2 struct { // NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS
		_                                                    structs.HostLayout
		hEventBuffer, recordSize, levelOfDetail, eventFilter uint32
		bAllUsers                                            bool
		reasonCode                                           uint32
	}
)

func TestLayouts(t *testing.T) {
	var (
		dev nvgpu.NV0080_ALLOC_PARAMETERS
		sub nvgpu.NV2080_ALLOC_PARAMETERS
		mem nvgpu.NV_MEMORY_ALLOCATION_PARAMS_V545
		buf nvgpu.NV_EVENT_BUFFER_ALLOC_PARAMETERS
		id  idInfo
		h   header
		r   recordV2
		en  enableEvents
		get updateGet
		b1  bindV1
		b2  bindV2
	)
	for _, c := range []struct {
		name        string
		have, fact  uintptr // ours, and from the facts
		fromHeaders uintptr
	}{
		{"device", sizeDevice, 56, unsafe.Sizeof(dev)},
		{"subdevice", sizeSubdevice, 4, unsafe.Sizeof(sub)},
		{"memory", sizeMemory, 128, unsafe.Sizeof(mem)},
		{"memory.owner", memoryOwner, 0, unsafe.Offsetof(mem.Owner)},
		{"memory.attr", memoryAttr, 24, unsafe.Offsetof(mem.Attr)},
		{"memory.attr2", memoryAttr2, 28, unsafe.Offsetof(mem.Attr2)},
		{"memory.size", memorySize, 64, unsafe.Offsetof(mem.Size)},
		{"buffer", sizeBuffer, 72, unsafe.Sizeof(buf)},
		{"buffer.recordSize", bufferRecordSize, 16, unsafe.Offsetof(buf.RecordSize)},
		{"buffer.recordCount", bufferRecordCount, 20, unsafe.Offsetof(buf.RecordCount)},
		{"buffer.notificationHandle", bufferNotification, 40, unsafe.Offsetof(buf.NotificationHandle)},
		{"buffer.hSubDevice", bufferSubdevice, 52, unsafe.Offsetof(buf.HSubDevice)},
		{"buffer.hBufferHeader", bufferHeader, 60, unsafe.Offsetof(buf.HBufferHeader)},
		{"buffer.hRecordBuffer", bufferRecords, 64, unsafe.Offsetof(buf.HRecordBuffer)},
		{"idInfo", sizeIDInfo, 32, unsafe.Sizeof(id)},
		{"idInfo.gpuId", idInfoGPU, 0, unsafe.Offsetof(id.gpuId)},
		{"idInfo.deviceInstance", idInfoDevice, 8, unsafe.Offsetof(id.deviceInstance)},
		{"idInfo.subDeviceInstance", idInfoSub, 12, unsafe.Offsetof(id.subDeviceInstance)},
		{"header.recordGet", headerGet, 0, unsafe.Offsetof(h.recordGet)},
		{"header.recordPut", headerPut, 4, unsafe.Offsetof(h.recordPut)},
		{"header.recordDropcount", headerDrops, 16, unsafe.Offsetof(h.recordDropcount)},
		{"record", sizeRecord, 32, unsafe.Sizeof(r)},
		{"record.type", recordType, 0, unsafe.Offsetof(r.kind)},
		{"record.tag", recordTag, 8, unsafe.Offsetof(r.tag)},
		{"record.seqno", recordSeq, 10, unsafe.Offsetof(r.seqno)},
		{"record.context_id", recordContext, 12, unsafe.Offsetof(r.contextID)},
		{"record.pid", recordPID, 16, unsafe.Offsetof(r.pid)},
		{"record.timestamp", recordTime, 24, unsafe.Offsetof(r.timestamp)},
		{"enable", sizeEnable, 8, unsafe.Sizeof(en)},
		{"enable.flags", enableFlags, 4, unsafe.Offsetof(en.flags)},
		{"get", sizeGet, 8, unsafe.Sizeof(get)},
		{"bindV1", sizeBindV1, 20, unsafe.Sizeof(b1)},
		{"bindV1.bAllUsers", bindAllUsers, 16, unsafe.Offsetof(b1.bAllUsers)},
		{"bindV2", sizeBindV2, 24, unsafe.Sizeof(b2)},
		{"bindV2.hEventBuffer", bindBuffer, 0, unsafe.Offsetof(b2.hEventBuffer)},
		{"bindV2.recordSize", bindRecordSize, 4, unsafe.Offsetof(b2.recordSize)},
		{"bindV2.levelOfDetail", bindDetail, 8, unsafe.Offsetof(b2.levelOfDetail)},
		{"bindV2.eventFilter", bindFilter, 12, unsafe.Offsetof(b2.eventFilter)},
		{"bindV2.bAllUsers", bindAllUsers, 16, unsafe.Offsetof(b2.bAllUsers)},
		{"bindV2.reasonCode", bindReason, 20, unsafe.Offsetof(b2.reasonCode)},
	} {
		if c.have != c.fact || c.have != c.fromHeaders {
			t.Errorf("%s: %d here, %d in the facts, %d by the headers", c.name, c.have, c.fact, c.fromHeaders)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		name       string
		have, want uint32
	}{
		{"enable", cmdEnable, 0x90cd0101},
		{"update get", cmdGet, 0x90cd0102},
		{"flush", cmdFlush, 0x90cd0104},
		{"clock", cmdClock, 0x20800403},
		{"attached ids", nvgpu.NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, 0x201},
		{"id info", nvgpu.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, 0x205},
		{"client", nvgpu.NV01_ROOT_CLIENT, 0x41},
		{"deviceless memory", nvgpu.NV01_MEMORY_DEVICELESS, 0x90ce},
		{"system memory", nvgpu.NV01_MEMORY_SYSTEM, 0x3e},
		{"event buffer", nvgpu.NV_EVENT_BUFFER, 0x90cd},
	} {
		if c.have != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, c.have, c.want)
		}
	}
}
