package nvtrace

import (
	"errors"
	"fmt"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// buffer is an event buffer: a ring of records with one writer, the driver, and one reader.
// Its memory is read-only for us. A control tells the driver how far we have read.
type buffer struct {
	client   *client
	handle   nvrm.Handle
	header   *memory
	records  *memory
	count    uint32 // capacity in records
	get      uint32 // the next record to read
	allUsers bool
}

// bufferSizes lists the buffers to try, best first.
var bufferSizes = []struct {
	kind  memoryKind
	count uint32
}{
	{devicelessMemory, 65536},
	{devicelessMemory, 16384},
	{devicelessMemory, 4096},
	{devicelessMemory, 1024},
	{systemMemory, 65536},
	{systemMemory, 4096},
}

// newBuffer makes the largest buffer that RM allows and binds it to the trace. If the bind
// fails no other size is tried: a failed bind stops the timer that serves other readers of
// the trace.
func newBuffer(c *client) (*buffer, error) {
	var errs []error
	for i, size := range bufferSizes {
		b := &buffer{client: c, count: size.count}
		err := b.make(size.kind, nvrm.Handle(handleBuffers+16*(i+1)))
		if err == nil {
			if err = b.bind(); err == nil {
				return b, nil
			}
			return nil, errors.Join(err, b.close())
		}
		errs = append(errs, err, b.close())
	}
	return nil, fmt.Errorf("make an event buffer: %w", errors.Join(errs...))
}

func (b *buffer) make(k memoryKind, handle nvrm.Handle) error {
	var err error
	if b.header, err = newMemory(b.client, k, handle+1, sizeHeader); err != nil {
		return err
	}
	if b.records, err = newMemory(b.client, k, handle+2, int(b.count)*sizeRecord); err != nil {
		return err
	}
	params := make([]byte, sizeBuffer)
	le.PutUint32(params[bufferRecordSize:], sizeRecord)
	le.PutUint32(params[bufferRecordCount:], b.count)
	// Without the subdevice the driver dereferences a null pointer.
	le.PutUint32(params[bufferSubdevice:], uint32(b.client.subdevice))
	le.PutUint32(params[bufferHeader:], uint32(b.header.handle))
	le.PutUint32(params[bufferRecords:], uint32(b.records.handle))
	if b.handle, err = b.client.alloc(b.client.handle, handle+3, nvgpu.NV_EVENT_BUFFER, params); err != nil {
		return err
	}
	b.get = load32(b.header.bytes, headerGet)
	if put := load32(b.header.bytes, headerPut); b.get >= b.count || put >= b.count {
		return fmt.Errorf("new event buffer of %d records: get is %d and put %d", b.count, b.get, put)
	}
	return nil
}

// bind requests the trace of all users, then of our own user, each in the newer form
// first.
func (b *buffer) bind() error {
	var reason uint32
	var errs []error
	for _, all := range []bool{true, false} {
		for _, form := range []struct {
			cmd  uint32
			size int
		}{{cmdBindV2, sizeBindV2}, {cmdBindV1, sizeBindV1}} {
			params := make([]byte, form.size)
			le.PutUint32(params[bindBuffer:], uint32(b.handle))
			le.PutUint32(params[bindRecordSize:], sizeRecord)
			le.PutUint32(params[bindFilter:], ^uint32(0))
			if all {
				params[bindAllUsers] = 1
			}
			err := b.client.control(b.client.subdevice, form.cmd, params)
			if err == nil {
				b.allUsers = all
				return nil
			}
			errs = append(errs, err)
			if form.cmd == cmdBindV2 && reason == 0 {
				reason = le.Uint32(params[bindReason:])
			}
		}
	}
	return bindRefused(reason, errors.Join(errs...))
}

// enable makes the driver write records, or stop. A full buffer keeps the oldest records:
// overwriting could change a record while it is read.
func (b *buffer) enable(on bool) error {
	params := make([]byte, sizeEnable)
	if on {
		params[0] = 1
		le.PutUint32(params[enableFlags:], keepOldest)
	}
	return b.client.control(b.handle, cmdEnable, params)
}

// flush makes the driver fetch the hardware's records now, not when its timer expires
// (every 33 ms). It takes the locks of all GPUs.
func (b *buffer) flush() error { return b.client.control(b.handle, cmdFlush, nil) }

// drain calls take with every record in order and frees their space. It returns how many
// records the driver dropped because the buffer was full.
func (b *buffer) drain(take func(record []byte)) (dropped uint64, err error) {
	put := load32(b.header.bytes, headerPut)
	if put >= b.count {
		return 0, fmt.Errorf("event buffer of %d records: put is %d", b.count, put)
	}
	if put == b.get {
		return 0, nil
	}
	for b.get != put {
		at := int(b.get) * sizeRecord
		take(b.records.bytes[at : at+sizeRecord])
		b.get = (b.get + 1) % b.count
	}
	dropped = load64(b.header.bytes, headerDrops) // the control below resets it
	params := make([]byte, sizeGet)
	le.PutUint32(params, b.get)
	return dropped, b.client.control(b.handle, cmdGet, params)
}

// close frees the buffer, then its memory. A second call does nothing.
func (b *buffer) close() error {
	var errs []error
	if b.handle != 0 {
		errs = append(errs, nvrm.Free(b.client.file, b.client.handle, b.client.handle, b.handle))
		b.handle = 0
	}
	return errors.Join(append(errs, b.records.close(), b.header.close())...)
}
