package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// benchArrivals are the times in microseconds at which `giveway bench` makes requests at random, on average
// every 20 ms, in the first 5 s: those of Python's random.Random(1).expovariate(50).
var benchArrivals = [...]int{
	2886, 40489, 69348, 75238, 88919, 100857, 121945, 153036, 155008, 155583, 191712, 203052, 231785, 231827, 243617, 269186, 274382, 332489, 378828,
	379449, 379965, 395557, 451543, 461143, 466025, 476993, 477582, 482595, 494116, 507812, 513120, 518370, 523308, 535617, 542460, 542895, 579246,
	595505, 616066, 620179, 718153, 757467, 760044, 768134, 793700, 818540, 873655, 884623, 920066, 942258, 949488, 967202, 1010025, 1047467, 1061542,
	1079325, 1080028, 1085589, 1117520, 1128219, 1132019, 1147935, 1172219, 1194666, 1204056, 1215615, 1229818, 1259960, 1274678, 1284671, 1298126,
	1298727, 1299616, 1323922, 1405635, 1423623, 1433627, 1437362, 1451315, 1531748, 1561187, 1576701, 1616064, 1621348, 1635770, 1696697, 1713942,
	1726234, 1732508, 1748389, 1811375, 1811489, 1842107, 1876457, 1919919, 1946900, 1980024, 1994648, 2011130, 2022235, 2023391, 2064197, 2081076,
	2085535, 2099588, 2112856, 2121682, 2130177, 2145642, 2165178, 2184136, 2196392, 2196959, 2202176, 2206077, 2223641, 2263108, 2295141, 2327042,
	2360946, 2366841, 2403712, 2426075, 2427813, 2428149, 2428443, 2456621, 2462363, 2464682, 2484288, 2492733, 2494174, 2497652, 2512641, 2516323,
	2522697, 2547565, 2559693, 2567465, 2580306, 2580784, 2590557, 2601484, 2605650, 2607953, 2653968, 2668240, 2672931, 2691541, 2725511, 2725932,
	2726292, 2729460, 2754836, 2758329, 2782717, 2805392, 2821128, 2826113, 2900372, 2932343, 2946881, 2951933, 2972844, 2982891, 3000044, 3007794,
	3027730, 3028942, 3036036, 3104816, 3146490, 3153807, 3192918, 3200350, 3256383, 3283622, 3294385, 3300201, 3300372, 3342564, 3343338, 3377569,
	3443078, 3459970, 3463734, 3504200, 3577021, 3601370, 3615591, 3625086, 3633608, 3638215, 3660642, 3671988, 3676304, 3678510, 3700440, 3707462,
	3721317, 3729188, 3770243, 3816231, 3816596, 3821080, 3829022, 3915955, 3946484, 3954767, 3959559, 3982004, 4018370, 4072190, 4080618, 4123426,
	4146664, 4159916, 4244600, 4249948, 4275801, 4277571, 4281290, 4329670, 4334460, 4362928, 4381265, 4418058, 4427239, 4435558, 4442442, 4482853,
	4501379, 4563096, 4606750, 4609659, 4625681, 4627883, 4628682, 4630202, 4670425, 4701460, 4736724, 4745061, 4764161, 4794618, 4804115, 4821031,
	4826096, 4827801, 4834006, 4878292, 4894914, 4946738, 4958979, 4965471, 4996402,
}

// asInBench makes a client's requests arrive at those times in the 5 s after from.
func asInBench(c sim.ClientConfig, from time.Duration) sim.ClientConfig {
	c.Arrival = sim.Arrival{Kind: sim.Trace}
	for _, at := range benchArrivals {
		c.Arrival.Trace = append(c.Arrival.Trace, from+time.Duration(at)*us)
	}
	return c
}

// big are jobs that run ResNet-50 with batch size 64, each alone measured at 136 to 144 steps/s. They queue
// two steps ahead. How a step divides into kernels was not measured.
func big(n int) (all []sim.ClientConfig) {
	for i := range n {
		all = append(all, sim.ClientConfig{
			Name: fmt.Sprint("big", i), Attr: sched.Attr{Class: sched.Batch}, Arrival: sim.Arrival{Kind: sim.Closed, Depth: 3},
			Kernels: []sim.Kernels{{Count: 160, Time: lognormal(44*us, 0.8)}},
		})
	}
	return all
}

// eagerOfBench is ResNet-50 launched kernel by kernel, every 20 ms.
func eagerOfBench() sim.ClientConfig {
	c := open(0, eagerKernels(3600*us)...)
	c.Arrival = regular
	c.Before, c.After, c.Jitter = sim.Always(1400*us), sim.Always(20*us), exponential(850*us)
	return c
}

// TestRandomArrivalsOfBench compares the model with docs/RESULTS.md: requests every 20 ms, and at random at the
// same rate, where those of the model arrive at the same times as the measured ones. A range is that of the
// runs on different hosts. P50 and sums are within 10 % of it, P99 within 20 %. Fitted are the host time of a
// launch of small jobs, one value for each kind of host, that of eager requests, and the length of
// the kernels of training and of the big jobs, by the rates that each has alone.
func TestRandomArrivalsOfBench(t *testing.T) {
	long(t)
	type figures [2]float64
	const usual, fast = 34 * us, 21 * us // host time of a launch
	small, apart, pooled := smalls(4, usual, 0, ""), smalls(4, fast, 0, ""), smalls(4, fast, 0, "p")
	train := trainer()
	train.Kernels[0].Time.Mean = 68 * us
	graph, eager := graphEvery20(1200*us, 0), eagerOfBench()
	for _, row := range []struct {
		name     string
		lc       sim.ClientConfig
		jobs     []sim.ClientConfig
		policy   string
		random   bool
		p50, p99 figures // ms
		sum      figures // steps/s
	}{
		{"alone", graph, nil, "native", false, figures{1.19, 1.26}, figures{1.25, 1.30}, figures{}},
		{"alone", graph, nil, "native", true, figures{1.19, 1.25}, figures{2.22, 2.99}, figures{}},
		{"four small", graph, small, "native", false, figures{1.95, 2.67}, figures{3.42, 5.84}, figures{465, 647}},
		{"four small", graph, small, "native", true, figures{2.34, 3.42}, figures{9.83, 14.72}, figures{509, 656}},
		{"four small", graph, small, "giveway", false, figures{1.21, 1.29}, figures{}, figures{453, 538}},
		{"four small", graph, small, "giveway", true, figures{2.19, 2.56}, figures{8.12, 13.53}, figures{488, 563}},
		{"four small, fast host", graph, apart, "native", false, figures{3.88, 3.88}, figures{6.59, 6.59}, figures{690, 690}},
		{"four small, fast host", graph, apart, "native", true, figures{4.20, 4.20}, figures{17.05, 17.05}, figures{667, 667}},
		{"pool", graph, pooled, "giveway", false, figures{1.20, 1.20}, figures{1.26, 1.26}, figures{1036, 1036}},
		{"pool", graph, pooled, "giveway", true, figures{1.20, 1.20}, figures{2.82, 2.82}, figures{1069, 1069}},
		{"three big", graph, big(3), "native", false, figures{4.69, 4.79}, figures{7.97, 8.10}, figures{122, 123}},
		{"three big", graph, big(3), "native", true, figures{6.05, 6.73}, figures{21.66, 24.52}, figures{121, 123}},
		{"three big", graph, big(3), "giveway", false, figures{1.27, 1.34}, figures{1.41, 3.36}, figures{132, 132}},
		{"three big", graph, big(3), "giveway", true, figures{1.27, 1.30}, figures{2.65, 3.13}, figures{129, 131}},
		{"eager alone", eager, nil, "native", false, figures{5.22, 5.90}, figures{7.98, 8.73}, figures{}},
		{"eager alone", eager, nil, "native", true, figures{5.55, 5.99}, figures{16.46, 18.67}, figures{}},
		{"eager and training", eager, []sim.ClientConfig{train}, "native", false, figures{6.94, 7.00}, figures{9.70, 9.71}, figures{29.9, 29.9}},
		{"eager and training", eager, []sim.ClientConfig{train}, "native", true, figures{7.54, 7.58}, figures{19.58, 24.24}, figures{29.9, 29.9}},
		{"eager and training", eager, []sim.ClientConfig{train}, "giveway", false, figures{5.23, 6.18}, figures{7.66, 7.88}, figures{23.3, 24.5}},
	} {
		cfg := sloWorld(t, 1, row.policy)
		cfg.Warmup, cfg.Length = 3*time.Second, 5*time.Second
		if row.random {
			row.lc = asInBench(row.lc, cfg.Warmup)
		}
		cfg.Clients = with(row.lc, row.jobs...)
		r := sim.New(cfg).Run()
		sum, l := 0.0, r.Clients[0].Latency
		for _, c := range r.Clients[1:] {
			sum += c.Rate
		}
		name := fmt.Sprintf("%s, %s, at random: %v", row.name, row.policy, row.random)
		p50, p99 := l.P50.Seconds()*1e3, l.P99.Seconds()*1e3
		t.Logf("%-46s P50 measured %v, model %.2f ms; P99 %v, %.2f ms; sum %v, %.1f/s", name, row.p50, p50, row.p99, p99, row.sum, sum)
		within(t, name+" P50", p50, row.p50, 0.10)
		within(t, name+" P99", p99, row.p99, 0.20)
		within(t, name+" sum", sum, row.sum, 0.10)
	}
}
