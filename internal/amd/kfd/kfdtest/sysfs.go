package kfdtest

import (
	"fmt"
	"os"
	"path/filepath"
)

// What sysfs shows, as files in a folder. Like the driver's, those of queues end
// without a newline.

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
			"cpu_cores_count 0\nsimd_count 1216\ngfx_target_version %d\nlocation_id %d\ndomain %d\ndrm_render_minor %d\nnum_cp_queues %d\n"+
				"max_engine_clk_fcompute %d\ncapability %d\nunique_id %d\nnum_xcc %d\n",
			n.GFX, n.Location, n.Domain, n.Render, n.Slots, n.ClockMHz, n.Capability, n.UniqueID, n.XCCs))
	}
}

func (k *KFD) writeProcess(p *process) {
	k.write(fmt.Sprintf("proc/%d/pasid", p.pid), fmt.Sprintf("%d\n", 0x8000+p.pid))
	k.write(fmt.Sprintf("proc/%d/queues/.keep", p.pid), "")
}

func (k *KFD) removeProcess(p *process) { k.remove(fmt.Sprintf("proc/%d", p.pid)) }

func (k *KFD) writeQueue(q *queue) {
	kind := 0 // sysfs has the kernel's enum
	switch q.kind {
	case 1:
		kind = 1
	case 3:
		kind = 4
	}
	dir := fmt.Sprintf("proc/%d/queues/%d/", q.owner.pid, q.id)
	k.write(dir+"gpuid", fmt.Sprint(q.gpu))
	k.write(dir+"type", fmt.Sprint(kind))
	k.write(dir+"size", fmt.Sprint(q.ringSize))
}

func (k *KFD) removeQueue(q *queue) { k.remove(fmt.Sprintf("proc/%d/queues/%d", q.owner.pid, q.id)) }
