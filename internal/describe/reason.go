package describe

import "github.com/giveway/giveway/sched"

// reasonText explains a reason of the scheduler.
type reasonText struct {
	because string   // completes "It runs:" or "It waits:"
	change  []change // what would change it
}

// reasons has a row for every sched.Reason.
var reasons = map[sched.Reason]reasonText{
	sched.ByDefault: {
		"the policy leaves it to the device's own scheduling",
		[]change{useClasses, makeOnline, makeBatch, pauseIt},
	},
	sched.IsOnline: {
		"it is online work, which is never stopped for other work",
		[]change{makeBatch, pauseIt},
	},
	sched.ItsTurn: {
		"it is its turn. Batch processes take turns on what online work leaves, by their weights",
		[]change{moreWeight, makeStandard, pauseIt},
	},
	sched.Beside: {
		"it runs side by side with other batch processes, because it does not fill the device",
		[]change{moreWeight, pauseIt},
	},
	sched.Shared: {
		"it shares the device with the others, by slices in proportion to the weights",
		[]change{moreWeight, useClasses, pauseIt},
	},
	sched.InGap: {
		"online work waits for each of its kernels, and this is the gap between two bursts of it",
		[]change{moreWeight, pauseIt},
	},
	sched.NoWork: {
		"it has no work for the device, so letting it run costs nothing",
		[]change{happens("the program launches work")},
	},
	sched.Unstoppable: {
		"it cannot be stopped. 'giveway ps' shows under CAN what can be done to it, and 'giveway doctor' why not more",
		[]change{happens("giveway run --class CLASS -- COMMAND: started this way it has the shim, by which its launches can be held")},
	},
	sched.IsFirst: {
		"it goes before all others in the policy's order",
		[]change{orderBy, useClasses, pauseIt},
	},
	sched.OtherTurn: {
		"it is the turn of another batch process. They take turns on what online work leaves, by their weights",
		[]change{moreWeight, makeStandard, makeOnline},
	},
	sched.OnlineWork: {
		"online work is ready, or was a moment ago, and batch work gives way to it",
		[]change{makeStandard, makeOnline, happens("the online work ends, or goes to another device")},
	},
	sched.RequestExpected: {
		"an online request is expected in a moment, and the device is kept free for it",
		[]change{makeStandard, happens("the online process runs without --predict and gives no hints of requests to come")},
	},
	sched.InBurst: {
		"online work waits for each of its kernels, and batch work is stopped while it does, for the length of a burst",
		[]change{makeStandard, happens("the online process launches its kernels without waiting for each, for example as a CUDA graph")},
	},
	sched.OtherWork: {
		"it is of class idle, and another process has work",
		[]change{makeBatch, makeStandard},
	},
	sched.NotFirst: {
		"others go before it in the policy's order",
		[]change{orderBy, useClasses, makeNative},
	},
	sched.UserPaused: {
		"it is paused",
		[]change{resumeIt},
	},
	sched.FloorTurn: {
		"it gets its floor: the minimum share of the device that every process is guaranteed",
		[]change{moreWeight, makeStandard},
	},
	sched.PolicyOverruled: {
		"the policy makes mistakes, so the scheduler lets all processes run. 'giveway policy' shows the mistake",
		[]change{otherPolicy},
	},
	sched.ShuttingDown: {
		"the daemon ends and lets all processes run",
		nil,
	},
}

// byName returns the reason that the API names so.
func byName(name string) (sched.Reason, bool) {
	for _, r := range sched.Reasons() {
		if r.String() == name {
			return r, true
		}
	}
	return sched.NoReason, false
}
