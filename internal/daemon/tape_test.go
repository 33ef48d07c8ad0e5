package daemon

import "math/rand/v2"

// tape turns the bytes of a fuzz input into choices. An empty tape gives zeros.
type tape []byte

func (t *tape) byte() (b byte) {
	if len(*t) > 0 {
		b, *t = (*t)[0], (*t)[1:]
	}
	return b
}

// number returns a number from 0 to below-1, which is at most 255.
func (t *tape) number(below int) int { return int(t.byte()) % below }

// bytes returns the next n bytes, or those that are left.
func (t *tape) bytes(n int) []byte {
	n = min(n, len(*t))
	b := (*t)[:n]
	*t = (*t)[n:]
	return b
}

// word returns a value of up to 64 bits: half of all values are small, the others are
// arbitrary or extreme.
func (t *tape) word() (v uint64) {
	switch kind := t.byte(); {
	case kind < 128:
		return uint64(t.byte())
	case kind < 136:
		return []uint64{1 << 31, 1 << 32, 1 << 55, 1 << 56, 1 << 63, 1<<63 - 1, 1<<64 - 1, 1 << 62}[kind-128]
	}
	for range 8 {
		v = v<<8 | uint64(t.byte())
	}
	return v
}

// seedTape returns a random tape.
func seedTape(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}
