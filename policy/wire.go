package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/giveway/giveway/sched"
)

// Question asks an external policy for a plan: the state of a device at one instant. It
// is sent as one line of JSON; docs/OWN-POLICY.md explains the fields.
type Question struct {
	Number  uint64           `json:"question"`
	Now     sched.Time       `json:"now_ns"`
	Devices []QuestionDevice `json:"devices"`
	Queues  []QuestionQueue  `json:"queues"`
}

// QuestionDevice is a device in a Question.
type QuestionDevice struct {
	ID             sched.DeviceID `json:"id"`
	Slice          time.Duration  `json:"slice_ns"`
	MinSharedSlice time.Duration  `json:"min_shared_slice_ns"`
	SwitchTime     time.Duration  `json:"switch_time_ns"`
	StopTime       time.Duration  `json:"stop_time_ns"`
	Serial         bool           `json:"serial"`
}

// QuestionQueue is a queue in a Question.
type QuestionQueue struct {
	ID         sched.QueueID   `json:"id"`
	Process    sched.ProcessID `json:"process"`
	Device     sched.DeviceID  `json:"device"`
	Class      string          `json:"class"`
	State      string          `json:"state"`
	Can        string          `json:"can"`
	Ready      bool            `json:"ready"`
	Draining   bool            `json:"draining"`
	ReadySince sched.Time      `json:"ready_since_ns"`
	Served     time.Duration   `json:"served_ns"`
	Priority   int32           `json:"priority"`
	Weight     int64           `json:"weight"`
	Share      uint8           `json:"share_percent"`
	Nice       int8            `json:"nice"`
	RealTime   uint8           `json:"real_time"`
	Open       uint32          `json:"open_requests"`
	SLO        time.Duration   `json:"slo_ns"`
	Deadline   time.Duration   `json:"deadline_ns"`
	Laxity     time.Duration   `json:"laxity_ns"`
	Work       time.Duration   `json:"work_ns"`
	Expect     sched.Time      `json:"expect_ns"`
	Focus      bool            `json:"focus"`
	Paused     bool            `json:"paused"`
}

func (q *Question) fill(number uint64, v *sched.View) {
	*q = Question{Number: number, Now: v.Now, Devices: q.Devices[:0], Queues: q.Queues[:0]}
	for _, d := range v.Devices {
		q.Devices = append(q.Devices, QuestionDevice(d))
	}
	for i := range v.Queues {
		from := &v.Queues[i]
		a := &from.Attr
		q.Queues = append(q.Queues, QuestionQueue{
			ID: from.ID, Process: from.Process, Device: from.Device, Class: a.Class.String(), State: from.State.String(),
			Can: from.Can.String(), Ready: from.Ready(), Draining: from.Draining(), ReadySince: from.ReadySince, Served: from.Served,
			Priority: a.Priority, Weight: from.Weight(), Share: a.Share, Nice: a.Nice, RealTime: a.RealTime,
			Open: from.OpenRequests, SLO: a.SLO, Deadline: a.Deadline, Laxity: a.Laxity, Work: a.Work, Expect: a.Expect, Focus: a.Focus, Paused: a.Paused,
		})
	}
}

// Answer is the plan of an external policy.
type Answer struct {
	Number uint64        `json:"answer"`
	Grants []AnswerGrant `json:"grants"`
	Wake   sched.Time    `json:"wake_ns"`
}

// AnswerGrant lets one queue run. Queues without a grant are stopped.
type AnswerGrant struct {
	Queue sched.QueueID `json:"queue"`
	Slice time.Duration `json:"slice_ns"`
	Bound uint32        `json:"bound"`
}

// Limits on an answer, which is untrusted input.
const (
	MaxAnswerBytes = 4 << 20
	maxSlice       = 10 * time.Second
)

// ParseAnswer reads an answer and returns its number and its plan. Unknown fields and
// values out of range are errors.
func ParseAnswer(line []byte) (uint64, *sched.Plan, error) {
	if len(line) > MaxAnswerBytes {
		return 0, nil, fmt.Errorf("answer of %d bytes is longer than %d", len(line), MaxAnswerBytes)
	}
	dec := json.NewDecoder(strings.NewReader(string(line)))
	dec.DisallowUnknownFields()
	var a Answer
	if err := dec.Decode(&a); err != nil {
		return 0, nil, fmt.Errorf("answer: %w", err)
	}
	if rest := line[dec.InputOffset():]; strings.TrimSpace(string(rest)) != "" {
		return 0, nil, errors.New("answer: the line has more than one JSON object")
	}
	if a.Number == 0 {
		return 0, nil, errors.New(`answer: "answer" must be the number of the question`)
	}
	if a.Wake < 0 {
		return 0, nil, fmt.Errorf("answer %d: wake_ns %d is negative", a.Number, a.Wake)
	}
	p := &sched.Plan{Wake: a.Wake}
	for _, g := range a.Grants {
		if g.Slice < 0 || g.Slice > maxSlice {
			return 0, nil, fmt.Errorf("answer %d: slice_ns %d of queue %d is not from 0 to %d", a.Number, g.Slice, g.Queue, maxSlice)
		}
		p.Grants = append(p.Grants, sched.Grant{Queue: g.Queue, Slice: g.Slice, Bound: g.Bound})
	}
	return a.Number, p, nil
}
