package sim

import "time"

// Context is the cost of saving a context from a device and restoring it. The last four
// fields are techniques that research proposals credit with reducing a switch from 10 ms to
// 40 us. No driver offers them; they can be set one by one to see what they would be worth.
type Context struct {
	Bytes     float64 // a full context
	Bandwidth float64 // bytes per second, in one direction
	Fixed     time.Duration

	Selective float64 // fraction of the context that must be saved: live registers only
	Async     float64 // fraction of the copying that overlaps with other work
	Compress  float64 // size after compression, as a fraction
	Lazy      float64 // fraction of the restoring that must be done before work continues
}

// factor returns f, or 1 if it is not set.
func factor(f float64) float64 {
	if f <= 0 {
		return 1
	}
	return min(f, 1)
}

// copying returns how many nanoseconds copying in one direction occupies the device.
func (c Context) copying() float64 {
	if c.Bandwidth <= 0 {
		return 0
	}
	all := c.Bytes / c.Bandwidth * factor(c.Selective) * factor(c.Compress) * float64(time.Second)
	return all * (1 - min(max(c.Async, 0), 1))
}

// among returns the part of one of n queues that share the context equally.
func (c Context) among(n int) Context {
	c.Bytes /= float64(max(n, 1))
	return c
}

// empty returns the cost with nothing to copy.
func (c Context) empty() Context { return Context{Fixed: c.Fixed} }

// Save returns how long saving occupies the device.
func (c Context) Save() time.Duration { return c.Fixed + time.Duration(c.copying()) }

// Restore returns how long restoring occupies the device.
func (c Context) Restore() time.Duration {
	return c.Fixed + time.Duration(c.copying()*factor(c.Lazy))
}
