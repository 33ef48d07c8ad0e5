package server

import (
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/shim/pageabi"
)

// operation is what a request asks for.
type operation uint8

const (
	opProcesses operation = iota + 1
	opMetrics
	opPolicy
	opStatus
	opHint
	opChange
	opSetPolicy
	opRestore
	opRun
	opShim
	opRecord
	opStream
	opDelays
	opPressure
	opBeginInputs
	opNextInputs
	opEndInputs
	opContainers
	opRegister
	opUnregister
	opConnect     // the connection itself, which only the audit names
	lastOperation = opConnect
)

// operations describes each operation.
var operations = [lastOperation + 1]struct {
	name string
	cost float64 // in tokens of the caller's bucket, beside those for the bytes of the reply
	// order: it changes something for longer than the request, and is audited.
	order bool
	reads bool // it changes nothing, and is allowed with the token for reading
	pods  bool // it is allowed in a registered container
	agent bool // it is allowed on the agent's socket
}{
	opProcesses:   {name: "processes", cost: 5, reads: true, pods: true},
	opMetrics:     {name: "metrics", cost: 5, reads: true},
	opPolicy:      {name: "policy", cost: 1, reads: true, pods: true},
	opStatus:      {name: "status", cost: 5, reads: true},
	opHint:        {name: "hint", cost: 1, pods: true},
	opChange:      {name: "set", cost: 5, order: true, pods: true},
	opSetPolicy:   {name: "policy", cost: 5, order: true},
	opRestore:     {name: "restore", cost: 5, order: true},
	opRun:         {name: "run", cost: 5, order: true, pods: true},
	opShim:        {name: "shim", cost: 5, pods: true},
	opRecord:      {name: "record", cost: 25, reads: true},
	opStream:      {name: "stream", cost: 25, reads: true},
	opDelays:      {name: "delays", cost: 25, reads: true},
	opPressure:    {name: "pressure", cost: 5, reads: true},
	opBeginInputs: {name: "record inputs", cost: 25},
	opNextInputs:  {name: "read inputs", cost: 5},
	opEndInputs:   {name: "read inputs", cost: 5},
	opContainers:  {name: "containers", cost: 5, agent: true},
	opRegister:    {name: "register", cost: 5, order: true, agent: true},
	opUnregister:  {name: "unregister", cost: 5, order: true, agent: true},
	opConnect:     {name: "connect"},
}

func (o operation) String() string { return operations[o].name }

// request is a request after HTTP and JSON have been parsed: plain, bounded values.
type request struct {
	op     operation
	pid    int // of opHint, opChange and opPressure
	token  sum // of the token that the caller sent; zero: none
	values attr.Values
	tree   bool       // of opChange
	begin  *int64     // of opHint
	end    *int64     // of opHint
	policy api.Policy // of opSetPolicy: name, parameters and device

	record recordQuery // of opRecord and opStream
	device string      // of opPressure: ID or index
	psi    bool        // of opPressure: text in the kernel's format

	container api.Container // of opRegister and opUnregister

	shimVersions pageabi.Versions // of opShim: that the shim understands
	shimRuntime  string
}

// sum is the hash of a token. It keeps comparisons from telling the token's length, and
// the token out of everything but the parsing of HTTP.
type sum [sha256.Size]byte

// tokenOf returns the hash of the token in a request's header.
func tokenOf(h http.Header) (s sum) {
	scheme, given, _ := strings.Cut(h.Get("Authorization"), " ")
	if given = strings.TrimSpace(given); strings.EqualFold(scheme, "Bearer") && given != "" {
		s = sha256.Sum256([]byte(given))
	}
	return s
}

// reply is the answer to a request, ready to be sent.
type reply struct {
	status int
	text   bool // text, of metrics or pressure; otherwise JSON
	close  bool // the connection is closed afterwards
	// held: the authority has answered itself and holds the connection from now on.
	held bool
	body []byte
}

// jsonReply returns a reply with a value as JSON.
func jsonReply(status int, v any) reply {
	body, err := json.Marshal(v)
	if err != nil { // a mistake of ours: all that is sent can be marshalled
		return reply{status: http.StatusInternalServerError, body: []byte(`{"error":"the answer is not valid JSON"}`)}
	}
	return reply{status: status, body: append(body, '\n')}
}

// errorReply returns the refusal of a request. A connection without the token is not kept, nor one
// with too many requests: a refusal takes no tokens, but the next connection does.
func errorReply(err error) reply {
	a := jsonReply(statusOf(err), api.Error{Message: err.Error()})
	a.close = a.status == http.StatusUnauthorized || a.status == http.StatusTooManyRequests
	return a
}

// write sends a reply.
func (a reply) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if a.text {
		h.Set("Content-Type", metrics.ContentType)
	}
	h.Set("X-Content-Type-Options", "nosniff")
	switch {
	case a.status == http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case a.status == http.StatusTooManyRequests:
		h.Set("Retry-After", "1")
	}
	if a.close {
		h.Set("Connection", "close")
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the caller may be gone
}
