package kfdtest

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/giveway/giveway/internal/amd/kfd"
)

// The files of sysfs, in the directory Config.Sys. As with the real driver, the files of
// queues end without a newline.

func (k *KFD) write(name, text string) {
	if k.cfg.Sys == "" {
		return
	}
	path := filepath.Join(k.cfg.Sys, "class/kfd/kfd", name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		panic(fmt.Sprintf("kfdtest: %v", err))
	}
}

func (k *KFD) remove(name string) {
	if k.cfg.Sys != "" {
		_ = os.RemoveAll(filepath.Join(k.cfg.Sys, "class/kfd/kfd", name)) // the test may be over
	}
}

func (k *KFD) writeTopology() {
	k.write("topology/nodes/0/gpu_id", "0\n")
	k.write("topology/nodes/0/name", "\n")
	k.write("topology/nodes/0/properties", "cpu_cores_count 2\nsimd_count 0\nnum_cp_queues 0\n")
	for _, n := range k.cfg.GPUs {
		dir := fmt.Sprintf("topology/nodes/%d/", n.Index)
		k.write(dir+"gpu_id", fmt.Sprintf("%d\n", n.GPU))
		k.write(dir+"name", n.Name+"\n")
		k.write(dir+"properties", fmt.Sprintf(
			"cpu_cores_count 0\nsimd_count 1216\ngfx_target_version %d\nnum_cp_queues %d\n%scapability %d\nunique_id %d\n",
			n.GFX, n.Slots, saveArea(n.Save), n.Capability, n.UniqueID))
	}
	if k.cfg.Sys != "" {
		k.write("../../../module/amdgpu/parameters/cwsr_enable", "1\n")
	}
}

func saveArea(s kfd.SaveArea) string {
	if !s.Known {
		return ""
	}
	return fmt.Sprintf("cwsr_size %d\nctl_stack_size %d\n", s.Size, s.Stack)
}

func (k *KFD) writeProcess(p *process) {
	k.write(fmt.Sprintf("proc/%d/pasid", p.pid), fmt.Sprintf("%d\n", 0x8000+p.pid))
	k.write(fmt.Sprintf("proc/%d/queues/.keep", p.pid), "")
}

func (k *KFD) removeProcess(p *process) { k.remove(fmt.Sprintf("proc/%d", p.pid)) }

func (k *KFD) writeQueue(q *queue) {
	kind := 0 // enum kfd_queue_type, which differs from the type in ioctls
	switch q.kind {
	case TypeSDMA:
		kind = 1
	case typeSDMAXGMI:
		kind = 4
	}
	dir := fmt.Sprintf("proc/%d/queues/%d/", q.owner.pid, q.id)
	k.write(dir+"gpuid", fmt.Sprint(q.gpu))
	k.write(dir+"type", fmt.Sprint(kind))
	k.write(dir+"size", fmt.Sprint(q.ringSize))
}

func (k *KFD) removeQueue(q *queue) { k.remove(fmt.Sprintf("proc/%d/queues/%d", q.owner.pid, q.id)) }

// MI300X is part of what the topology says about an MI300X.
var MI300X = kfd.Node{
	Index: 1, GPU: 51545, Name: "ip discovery", GFX: 90402, Slots: 24,
	Capability: kfd.CapTrapDebug | kfd.CapTrapDebugFirmware, UniqueID: 0xabcdef,
	Save: kfd.SaveArea{Size: 23203840, Stack: 12288, Known: true},
}
