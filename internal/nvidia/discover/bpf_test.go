package discover

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// fiemap is an ioctl of ordinary file systems whose argument has the size of NVOS21:
// fm_start u64, fm_length u64, fm_flags, fm_mapped_extents, fm_extent_count, fm_reserved.
// The test uses it in place of an allocation, with the class in the upper half of
// fm_length.
const fiemap = 0xc020660b

func fiemapArg(client, object, class uint32) []byte {
	b := make([]byte, nvrm.SizeNVOS21)
	for i, v := range []uint32{client, 2, object, class} {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	return b
}

// fiemapChild makes calls that must be traced and calls that must not.
func fiemapChild(path string) error {
	f, err := nvrm.Open(path)
	if err != nil {
		return err
	}
	for _, class := range []uint32{0x0041, nvrm.ClassChannelGroup, 0x503c, 0xc86f, 0xcbc0, nvrm.ClassSubdevice, 0x003e} {
		if err := f.Ioctl(fiemap, fiemapArg(0xc1d00001, 0x5c000000+class, class)); err != nil {
			return err
		}
	}
	_ = f.Ioctl(0xc020660c, make([]byte, 32)) // a call that is not of interest
	return nil
}

func TestCallsOfAnotherProcessAreTraced(t *testing.T) {
	tr, err := trace(requests{alloc: []uint32{fiemap & noDirection}, free: rmRequests.free})
	if err != nil {
		t.Skipf("eBPF: %v", err)
	}
	defer tr.Close()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+"=fiemap", childFile+"="+path)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Skipf("FS_IOC_FIEMAP on %s: %v: %s", path, err, out)
	}
	time.AfterFunc(20*time.Second, func() { tr.reader.Close() })
	for _, class := range []uint32{nvrm.ClassChannelGroup, 0xc86f, 0xcbc0, nvrm.ClassSubdevice} {
		got, err := tr.Read()
		for err == nil && got.pid != c.Process.Pid { // frees of other processes are traced too
			got, err = tr.Read()
		}
		if err != nil {
			t.Fatalf("waiting for class %04x: %v", class, err)
		}
		want := call{pid: c.Process.Pid, fd: got.fd, client: 0xc1d00001, object: nvrm.Handle(0x5c000000 + class), class: class}
		if got != want || got.fd < 3 {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if n := tr.Lost(); n != 0 {
		t.Errorf("lost calls: got %d, want 0", n)
	}
}
