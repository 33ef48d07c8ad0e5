package nvtrace

import (
	"errors"
	"fmt"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// buffer is an event buffer: a ring of records with one writer, the driver, and
// one reader. Both parts are memory that we may only read; where we are is told
// with a control.
type buffer struct {
	client   *client
	handle   nvrm.Handle
	header   *memory
	records  *memory
	count    uint32 // records it holds
	get      uint32 // the next to read
	allUsers bool
}

// sizes are the buffers to try, best first.
var sizes = []struct {
	kind  kind
	count uint32
}{
	{deviceless, 65536},
	{deviceless, 16384},
	{deviceless, 4096},
	{deviceless, 1024},
	{system, 65536},
	{system, 4096},
}

// newBuffer makes the largest buffer to be had and binds it to the record. When
// the driver has refused to bind one, another size is not tried: a bind that
// fails stops the timer that feeds other readers of the same record.
func newBuffer(c *client) (*buffer, error) {
	var errs []error
	for i, size := range sizes {
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

func (b *buffer) make(k kind, handle nvrm.Handle) error {
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
	// Without the subdevice the driver follows a null pointer.
	le.PutUint32(params[bufferSubdevice:], uint32(b.client.subdevice))
	le.PutUint32(params[bufferHeader:], uint32(b.header.handle))
	le.PutUint32(params[bufferRecords:], uint32(b.records.handle))
	if b.handle, err = b.client.alloc(b.client.handle, handle+3, nvgpu.NV_EVENT_BUFFER, params); err != nil {
		return err
	}
	b.get = load32(b.header.bytes, headerGet)
	if put := load32(b.header.bytes, headerPut); b.get >= b.count || put >= b.count {
		return fmt.Errorf("a new event buffer of %d records is at get %d, put %d", b.count, b.get, put)
	}
	return nil
}

// bind asks for the record of all users, then for that of our own, and of each
// the newer form first.
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
	return bindRefusal(reason, errors.Join(errs...))
}

// enable has the driver write records, or not. A full buffer keeps the old ones:
// overwriting would tear what is being read.
func (b *buffer) enable(on bool) error {
	params := make([]byte, sizeEnable)
	if on {
		params[0] = 1
		le.PutUint32(params[enableFlags:], keepOldest)
	}
	return b.client.control(b.handle, cmdEnable, params)
}

// flush has the driver fetch what the hardware has at once, and not at the next
// turn of its timer (33 ms). It takes the locks of all GPUs.
func (b *buffer) flush() error { return b.client.control(b.handle, cmdFlush, nil) }

// drain hands every record that is there to take, in order, and gives its place
// back. It returns how many the driver dropped for want of one.
func (b *buffer) drain(take func(record []byte)) (dropped uint64, err error) {
	put := load32(b.header.bytes, headerPut)
	if put >= b.count {
		return 0, fmt.Errorf("event buffer of %d records is written at %d", b.count, put)
	}
	if put == b.get {
		return 0, nil
	}
	for b.get != put {
		at := int(b.get) * sizeRecord
		take(b.records.bytes[at : at+sizeRecord])
		b.get = (b.get + 1) % b.count
	}
	dropped = load64(b.header.bytes, headerDrops) // the control zeroes it
	params := make([]byte, sizeGet)
	le.PutUint32(params, b.get)
	return dropped, b.client.control(b.handle, cmdGet, params)
}

// close frees the buffer, then its memory. Twice equals once.
func (b *buffer) close() error {
	var errs []error
	if b.handle != 0 {
		errs = append(errs, nvrm.Free(b.client.file, b.client.handle, b.client.handle, b.handle))
		b.handle = 0
	}
	return errors.Join(append(errs, b.records.close(), b.header.close())...)
}
