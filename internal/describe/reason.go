package describe

import "github.com/giveway/giveway/sched"

// reasonText explains a reason of the scheduler. In change, PID stands for the process.
type reasonText struct {
	because string   // completes "It runs:" or "It waits:"
	change  []string // commands that would change it, and what they do
}

const (
	makeOnline  = "giveway set PID --class online: it is not stopped any more, and batch work gives way to it"
	makeBatch   = "giveway set PID --class batch: it gives way to online work and takes turns with other batch work"
	moreWeight  = "giveway set PID --weight N: with a larger N it gets a larger part of the time that batch work has"
	makeNative  = "giveway policy native: the device's own scheduling, for all processes"
	pauseIt     = "giveway pause PID: it waits until it is resumed"
	notStandard = "giveway set PID --class standard: it is scheduled as the device itself does, and takes no turns"
)

// reasons has a row for every sched.Reason.
var reasons = map[sched.Reason]reasonText{
	sched.ByDefault: {
		"the policy leaves it to the device's own scheduling",
		[]string{makeOnline, makeBatch, pauseIt},
	},
	sched.IsOnline: {
		"it is online work, which is never stopped for other work",
		[]string{makeBatch, pauseIt},
	},
	sched.ItsTurn: {
		"it is its turn. Batch processes take turns on what online work leaves, by their weights",
		[]string{moreWeight, notStandard, pauseIt},
	},
	sched.Beside: {
		"it runs side by side with other batch processes, because it does not fill the device",
		[]string{moreWeight, pauseIt},
	},
	sched.Shared: {
		"it shares the device with the others, by slices in proportion to the weights",
		[]string{moreWeight, pauseIt},
	},
	sched.InGap: {
		"online work waits for each of its kernels, and this is the gap between two bursts of it",
		[]string{moreWeight, pauseIt},
	},
	sched.NoWork: {
		"it has no work for the device, so letting it run costs nothing",
		[]string{"the program launches work"},
	},
	sched.Unstoppable: {
		"it cannot be stopped. 'giveway ps' shows under CAN what can be done to it, and 'giveway doctor' why not more",
		[]string{"giveway run --class CLASS -- COMMAND: started this way it has the shim, by which its launches can be held"},
	},
	sched.IsFirst: {
		"it goes before all others in the policy's order",
		[]string{"giveway set PID: the attributes by which the policy orders are in 'giveway policy list'", pauseIt},
	},
	sched.OtherTurn: {
		"it is the turn of another batch process. They take turns on what online work leaves, by their weights",
		[]string{moreWeight, notStandard, makeOnline},
	},
	sched.OnlineWork: {
		"online work is ready, or was a moment ago, and batch work gives way to it",
		[]string{notStandard, makeOnline, "the online work ends, or goes to another device"},
	},
	sched.RequestExpected: {
		"an online request is expected in a moment, and the device is kept free for it",
		[]string{notStandard, "the online process runs without --predict and gives no hints of requests to come"},
	},
	sched.InBurst: {
		"online work waits for each of its kernels, and batch work is stopped while it does, for the length of a burst",
		[]string{notStandard, "the online process launches its kernels without waiting for each, for example as a CUDA graph"},
	},
	sched.OtherWork: {
		"it is of class idle, and another process has work",
		[]string{makeBatch, notStandard},
	},
	sched.NotFirst: {
		"others go before it in the policy's order",
		[]string{"giveway set PID: the attributes by which the policy orders are in 'giveway policy list'", makeNative},
	},
	sched.UserPaused: {
		"it is paused",
		[]string{"giveway resume PID: it uses its devices again"},
	},
	sched.FloorTurn: {
		"it gets its floor: the minimum share of the device that every process is guaranteed",
		[]string{moreWeight, notStandard},
	},
	sched.PolicyOverruled: {
		"the policy makes mistakes, so the scheduler lets all processes run. 'giveway policy' shows the mistake",
		[]string{"giveway policy NAME: another policy"},
	},
	sched.ShuttingDown: {
		"the daemon ends and lets all processes run",
		nil,
	},
}

// byName returns the explanation of a reason, as the API names it.
func byName(name string) (reasonText, bool) {
	for _, r := range sched.Reasons() {
		if r.String() == name {
			return reasons[r], true
		}
	}
	return reasonText{}, false
}
