package sim_test

import (
	"fmt"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// light is a batch client that does not fill the GPU: bursts of 350 us with 1 ms of host
// time in between. As with ResNet-50 launched kernel by kernel on the H200, one alone uses
// a quarter of the GPU, and the visits of four of them take 300 to 500 us.
func light(i int) sim.ClientConfig {
	return sim.ClientConfig{
		Name: fmt.Sprint("light", i), Attr: sched.Attr{Class: sched.Batch},
		Arrival: sim.Arrival{Kind: sim.Closed}, Kernels: []sim.Kernels{{Count: 1, Time: sim.Around(350*us, 0.2)}},
		Before: sim.Around(1000*us, 0.2),
	}
}
