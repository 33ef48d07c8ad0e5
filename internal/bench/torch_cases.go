package bench

import (
	"fmt"
	"slices"
	"time"
)

// torchCases returns the cases of PyTorch processes: ResNet-50 and a decoding transformer
// as online work, training and ResNet-50 in a loop as batch work.
func torchCases() []Case {
	all := slices.Concat(trainingCases(), smallCases(), poolCases(), lateCases())
	for i := range all {
		all[i].Torch = true
	}
	return all
}

// Loads of PyTorch.
var (
	graph    = load("resnet50", "online", 1, "--every-ms 20 --mode graph")
	eager    = load("resnet50", "online", 1, "--every-ms 20 --mode eager")
	training = load("training", "batch", 1, "--work train")
	small    = load("small", "batch", 1, "--work small")
	big      = load("big", "batch", 1, "--work big")
)

// byMPS measures the clients in an MPS server.
var byMPS = Setup{Name: mpsPriority, MPS: true}

func trainingCases() []Case {
	return []Case{
		{Name: "torch-graph", About: "ResNet-50 as a CUDA graph every 20 ms against transformer training", Online: graph, Batch: training},
		{Name: "torch-eager", About: "ResNet-50 launched kernel by kernel every 20 ms against transformer training", Online: eager, Batch: training},
	}
}

// smallCases returns the cases of batch jobs that take turns or run side by side.
func smallCases() []Case {
	groups, unprepared := []string{"small"}, &Setup{Name: underGiveway}
	return []Case{
		{
			Name: "many-small", Groups: groups, About: "four launch-bound batch jobs: ResNet-50 launched kernel by kernel, batch size 1",
			Batch: times(4, small), Light: true, InRounds: unprepared, Targets: []Target{{Phase: underGiveway, Figure: BatchNative, Least: 0.97}},
		},
		{
			Name: "many-small-online", Groups: groups, About: "the same with ResNet-50 as a CUDA graph every 20 ms",
			Online: graph, Batch: times(4, small), Light: true, Random: true, InRounds: unprepared, Setups: []Setup{byMPS},
			Targets: []Target{{Phase: underGiveway, Figure: BatchNative, Least: 0.80}, {Phase: underGiveway, Figure: P99Native, Most: 0.6}},
		},
		{
			Name: "one-small-online", About: "one launch-bound batch job with ResNet-50 launched kernel by kernel every 20 ms, without the shim",
			Online: eager, Batch: small, Light: true, Random: true, InRounds: unprepared,
		},
		{
			Name: "heavy", Groups: groups, About: "three batch jobs that fill the GPU (ResNet-50, batch size 64), with ResNet-50 as a CUDA graph every 20 ms",
			Online: graph, Batch: times(3, big), Random: true, InRounds: unprepared, Setups: []Setup{byMPS},
			Targets: []Target{{Phase: underGiveway, Figure: BatchNative, Least: 1}, {Phase: underGiveway, Figure: P99Alone, Most: 1.15}},
		},
	}
}

// poolCases returns the cases of batch jobs in the pool.
func poolCases() []Case {
	groups := []string{"pool"}
	all := Setup{
		Name: inPool, Pool: true, Run: inPoolIf(func(Load) bool { return true }),
		Then: []Change{{Name: inPoolPredicted, Set: "--predict", Learn: time.Second / 2}},
	}
	onlySmall := Setup{Name: inPoolSmall, Pool: true, Run: inPoolIf(func(l Load) bool { return l.Name != "training" })}
	return []Case{
		{
			Name: "pool-small", Groups: groups, About: "four launch-bound batch jobs in the pool, with ResNet-50 as a CUDA graph every 20 ms",
			Online: graph, Batch: times(4, small), Light: true, Idle: true, Random: true, Prepared: true, Setups: []Setup{all},
			Targets: []Target{
				{Phase: newPhase(inPool, onlineIdle).Name, Figure: BatchNative, Least: 1.25},
				{Phase: inPool, Figure: BatchNative, Least: 1.25},
				{Phase: inPool, Figure: P99Alone, Most: 1.08},
				{Phase: inPoolPredicted, Figure: BatchNative, Least: 1.25},
				{Phase: inPoolPredicted, Figure: P99Alone, Most: 1.08},
			},
		},
		{
			Name: "pool-mixed", Groups: groups, About: "training and two launch-bound jobs in the pool, with ResNet-50 as a CUDA graph every 20 ms",
			Online: graph, Batch: slices.Concat(training, times(2, small)), Light: true, Setups: []Setup{byMPS, onlySmall, all},
			Targets: []Target{
				{Phase: inPool, Figure: BatchNative, Least: 1},
				{Phase: inPool, Figure: P99Alone, Most: 1.1},
				{Phase: inPoolPredicted, Figure: BatchNative, Least: 1},
				{Phase: inPoolPredicted, Figure: P99Alone, Most: 1.1},
			},
		},
	}
}

// lateCases returns the cases of launch-bound online programs, with late entry.
func lateCases() []Case {
	groups := []string{"late"}
	late := &Setup{
		Name: lateAuto, Run: withLate("auto"),
		// It compares 64 requests of each kind before it decides.
		Then: []Change{{Name: lateOff, Set: "--late-entry=off"}, {Name: lateEntry, Set: "--late-entry=on", Learn: time.Second}},
	}
	mps := []Setup{byMPS}
	lateOnAndOff := newPhase(lateAuto, onAndOff).Name
	restless := []Target{{Phase: lateOnAndOff, Figure: P50Alone, Most: 1.05}, {Phase: lateAuto, Figure: BatchNative, Least: 0.75}}
	return []Case{
		{
			Name: "eager-late", Groups: groups, About: "ResNet-50 launched kernel by kernel every 20 ms, with late entry, against training",
			Online: eager, Batch: training, Random: true, InRounds: late, Setups: mps,
			Targets: []Target{
				{Phase: lateOnAndOff, Figure: P50Alone, Most: 1.05},
				{Phase: lateAuto, Figure: P99Alone, Most: 1.05}, // on and off there are too few requests for it
				{Phase: lateAuto, Figure: BatchNative, Least: 0.96},
			},
		},
		{
			Name: "eager-loop-late", Groups: groups, About: "the same in a loop that never rests", Batch: training,
			Online: load("eager", "online", 1, "--every-ms 0 --mode eager"), InRounds: late, Setups: mps, Targets: restless,
		},
		{
			Name: "decode-late", Groups: groups, About: "a transformer of 24 blocks that decodes without rest, with late entry, against training", Batch: training,
			Online: load("decode", "online", 1, "--every-ms 0 --mode decode"), InRounds: late, Setups: mps, Targets: restless,
		},
		{
			Name: "decode-every-late", About: "the same, one token every 20 ms", Batch: training,
			Online: load("decode", "online", 1, "--every-ms 20 --mode decode"), Random: true, InRounds: late,
		},
	}
}

// byClass returns the flags of giveway run for the load's class.
func byClass(l Load) string { return fmt.Sprintf("--class %s --weight %d", l.Class, l.Weight) }

// withLate returns the flags of giveway run with late entry.
func withLate(mode string) func(Load) string {
	return func(l Load) string { return byClass(l) + " --late-entry " + mode }
}

// inPoolIf puts the batch loads for which member returns true into the pool. The others are started
// plainly, but for online ones.
func inPoolIf(member func(Load) bool) func(Load) string {
	return func(l Load) string {
		switch {
		case l.Class == "online":
			return byClass(l)
		case member(l):
			return byClass(l) + " --pool"
		}
		return ""
	}
}
