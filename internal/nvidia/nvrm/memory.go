package nvrm

// cmdGetPIDInfo is NV2080_CTRL_CMD_GPU_GET_PID_INFO, which nvgpu does not define. Layout from
// ctrl2080gpu.h, the same in drivers 535 to 615: a count at 0, then entries of 72 bytes.
const (
	cmdGetPIDInfo = 0x2080018e
	pidInfoList   = 8
	pidInfoSize   = 72
	pidInfoMax    = 200
	pidInfoResult = 8
	pidInfoMemory = 16 // bytes of its own, bytes that it shares, and four that are not used here
)

// DeviceMemory returns how many bytes of a GPU's memory processes have, those of each that has
// any. RM visits all allocations of all clients for it, under the GPU's lock.
func DeviceMemory(f Ioctler, client, subdevice Handle, pids []int) (map[int]uint64, error) {
	found := make(map[int]uint64, len(pids))
	for len(pids) > 0 {
		n := min(len(pids), pidInfoMax)
		params := make([]byte, pidInfoList+pidInfoMax*pidInfoSize)
		le.PutUint32(params, uint32(n))
		for i, pid := range pids[:n] {
			le.PutUint32(params[pidInfoList+i*pidInfoSize:], uint32(pid))
		}
		if err := Control(f, client, subdevice, cmdGetPIDInfo, params); err != nil {
			return found, err
		}
		for i, pid := range pids[:n] {
			entry := params[pidInfoList+i*pidInfoSize:]
			bytes := le.Uint64(entry[pidInfoMemory:]) + le.Uint64(entry[pidInfoMemory+8:])
			if Status(le.Uint32(entry[pidInfoResult:])) == OK && bytes > 0 {
				found[pid] = bytes
			}
		}
		pids = pids[n:]
	}
	return found, nil
}
