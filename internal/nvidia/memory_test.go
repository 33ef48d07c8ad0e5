package nvidia

import (
	"errors"
	"testing"
	"testing/fstest"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
)

// TestMemory: the GPU is asked for by its UUID, and only a driver whose layouts are known.
func TestMemory(t *testing.T) {
	for version, known := range map[string]bool{"580.159.04": true, "999.1": false} {
		asked := ""
		b := New(Config{
			Root: fstest.MapFS{"sys/module/nvidia/version": {Data: []byte(version + "\n")}}, NoTrace: true,
			readMemory: func(c nvtrace.Config, pids []int) (map[int]uint64, error) {
				asked = c.UUID
				return map[int]uint64{pids[0]: 1 << 30}, nil
			},
		})
		b.host = &fakeHost{}
		var reader hal.MemoryReader = b.gpu(testGPU, b.driver.state())
		got, err := reader.Memory([]int{7})
		if known && (err != nil || got[7] != 1<<30 || asked != testGPU) {
			t.Errorf("driver %s: got %v, %v of GPU %q", version, got, err, asked)
		}
		if !known && (!errors.Is(err, errUnknownDriver) || asked != "") {
			t.Errorf("driver %s: got %v, %v of GPU %q; want an error and no call", version, got, err, asked)
		}
	}
}
