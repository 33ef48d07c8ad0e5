package journal

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
)

// The file begins with magic and the version of the format. Frames follow, each with the
// length of its text, the same length inverted, and the checksum of the text. The first text
// is a header, every other one a record; all are JSON. Numbers are little endian.
//
//	GIVEWAY 1 | length ^length crc32c {"boot":...} | length ^length crc32c {"k":...,"v":...} | ...
//
// A frame whose length is right and that goes beyond the end of the file was not written
// completely: its write never returned, so its change was not made. Anything else that does
// not fit is damage.
const (
	magic     = "GIVEWAY"
	version   = 1
	headSize  = len(magic) + 1
	frameSize = 12
)

// ErrVersion means that another version of Giveway wrote the journal.
var ErrVersion = errors.New("the journal has a format of another version of giveway: run 'giveway restore' of that version, then remove the file")

var checksums = crc32.MakeTable(crc32.Castagnoli)

// header is the first text of a file.
type header struct {
	Boot string `json:"boot"`
}

// record sets the value of a key, or deletes the key if there is no value.
type record struct {
	Key   string          `json:"k"`
	Value json.RawMessage `json:"v,omitempty"`
}

// length returns the size of the record in a file, within a few bytes.
func (r record) length() int64 {
	return int64(frameSize + len(`{"k":"","v":}`) + len(r.Key) + len(r.Value))
}

// maxLive returns how large all values may be together for the record to be written.
func (r record) maxLive() int64 {
	if isOrder(r.Key) {
		return MaxOrders
	}
	return maxLive
}

func (r record) encode() ([]byte, error) { return frame(nil, r) }

// frame appends v, as JSON in a frame.
func frame(buf []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(text) > maxRecord {
		return nil, fmt.Errorf("a record of %d bytes is larger than %d", len(text), maxRecord)
	}
	n := uint32(len(text))
	buf = binary.LittleEndian.AppendUint32(buf, n)
	buf = binary.LittleEndian.AppendUint32(buf, ^n)
	buf = binary.LittleEndian.AppendUint32(buf, crc32.Checksum(text, checksums))
	return append(buf, text...), nil
}

// errTorn means that a frame was not written completely.
var errTorn = errors.New("the last record is incomplete")

// unframe returns the text of the first frame, and what follows it.
func unframe(data []byte) (text, rest []byte, err error) {
	if len(data) < frameSize {
		return nil, nil, errTorn
	}
	n, inverted, sum := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint32(data[4:]), binary.LittleEndian.Uint32(data[8:])
	data = data[frameSize:]
	switch {
	case n != ^inverted || n > maxRecord:
		return nil, nil, errors.New("the length of a record is wrong")
	case int64(n) > int64(len(data)):
		return nil, nil, errTorn
	case crc32.Checksum(data[:n], checksums) != sum:
		return nil, nil, errors.New("the checksum of a record is wrong")
	}
	return data[:n], data[n:], nil
}

// encode returns a file with the present values. s.mu is held.
func (s *Store) encode() ([]byte, error) {
	buf, err := frame(append([]byte(magic), version), header{bootID()})
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if err == nil {
			buf, err = frame(buf, record{key, s.values[key]})
		}
	}
	return buf, err
}

// read takes in the values of a file. An error is ErrVersion, or says what is damaged: the
// records before are taken in.
func (s *Store) read(f *os.File) error {
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return err
	case len(data) > maxFile:
		return fmt.Errorf("the file is larger than %d bytes", maxFile)
	case len(data) == 0: // its creator was killed
		return nil
	case len(data) < headSize || !bytes.HasPrefix(data, []byte(magic)):
		return errors.New("the file is not a journal")
	case data[len(magic)] != version:
		return fmt.Errorf("%w (version %d, this program has %d)", ErrVersion, data[len(magic)], version)
	}
	var h header
	text, data, err := unframe(data[headSize:])
	if err != nil || json.Unmarshal(text, &h) != nil {
		return errors.New("the header is wrong")
	}
	if h.Boot != bootID() {
		return nil
	}
	for len(data) > 0 {
		if text, data, err = unframe(data); errors.Is(err, errTorn) {
			return nil
		}
		if err != nil {
			return err
		}
		var r record
		if err := json.Unmarshal(text, &r); err != nil {
			return fmt.Errorf("a record is wrong: %w", err)
		}
		s.apply(r)
	}
	return nil
}

// bootID identifies this boot of the machine. Tests set it.
var bootID = machineBootID

var machineBootID = sync.OnceValue(func() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
})
