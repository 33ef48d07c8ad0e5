package sim

import "time"

// Context is the cost of taking a context off a device and putting it back. The
// research notes credit five techniques with taking a switch from 10 ms down to
// 40 us; here they are factors that can be set one by one. No stock driver
// offers them: they are for asking what they would be worth.
type Context struct {
	Bytes     float64 // a full context
	Bandwidth float64 // bytes a second, one way
	Fixed     time.Duration

	Selective float64 // part of the context that must be saved: live registers only
	Async     float64 // part of the saving hidden behind the other's work
	Compress  float64 // size after compression
	Lazy      float64 // part of the restoring done before work goes on
}

// factor is 1 where nothing is said.
func factor(f float64) float64 {
	if f <= 0 {
		return 1
	}
	return min(f, 1)
}

func (c Context) copying() float64 {
	if c.Bandwidth <= 0 {
		return 0
	}
	return c.Bytes / c.Bandwidth * factor(c.Selective) * factor(c.Compress) * float64(time.Second)
}

// among is one queue's part of a context that n queues fill.
func (c Context) among(n int) Context {
	c.Bytes /= float64(max(n, 1))
	return c
}

// empty is a context with nothing in it to copy.
func (c Context) empty() Context { return Context{Fixed: c.Fixed} }

// Save is how long the device is taken up by saving.
func (c Context) Save() time.Duration {
	return c.Fixed + time.Duration(c.copying()*(1-min(max(c.Async, 0), 1)))
}

// Restore is how long the device is taken up by restoring.
func (c Context) Restore() time.Duration {
	return c.Fixed + time.Duration(c.copying()*(1-min(max(c.Async, 0), 1))*factor(c.Lazy))
}
