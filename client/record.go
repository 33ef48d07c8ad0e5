package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
)

// Record returns a part of the daemon's record.
func (c *Client) Record(ctx context.Context, q api.RecordQuery) (api.Record, error) {
	return call[api.Record](ctx, c, http.MethodGet, "/v1/record"+queryOf(q), nil)
}

// Delays returns which processes waited for which others.
func (c *Client) Delays(ctx context.Context) (api.Delays, error) {
	return call[api.Delays](ctx, c, http.MethodGet, "/v1/delays", nil)
}

// Pressure returns the pressure of devices and processes.
func (c *Client) Pressure(ctx context.Context) (api.Pressure, error) {
	return call[api.Pressure](ctx, c, http.MethodGet, "/v1/pressure", nil)
}

// BeginInputs begins a recording of the scheduler's inputs, which only root may have, and
// returns its beginning. It ends when NextInputs is not called for 10 s.
func (c *Client) BeginInputs(ctx context.Context) (api.Inputs, error) {
	return call[api.Inputs](ctx, c, http.MethodPost, "/v1/record/inputs", nil)
}

// NextInputs returns the next part of the recording of the scheduler's inputs.
func (c *Client) NextInputs(ctx context.Context) (api.Inputs, error) {
	return call[api.Inputs](ctx, c, http.MethodGet, "/v1/record/inputs", nil)
}

// EndInputs ends the recording of the scheduler's inputs and returns its last part.
func (c *Client) EndInputs(ctx context.Context) (api.Inputs, error) {
	return call[api.Inputs](ctx, c, http.MethodDelete, "/v1/record/inputs", nil)
}

// silence is how long a stream of the record may send nothing: the daemon sends a heartbeat
// every 10 s.
const silence = 35 * time.Second

// maxEvent is the longest event of a stream in bytes.
const maxEvent = 16 << 20

var errSilence = errors.New("the daemon has sent nothing for too long")

// FollowRecord calls each with parts of the daemon's record, first what is there and then
// what is added, until ctx is done, each returns an error or the connection ends. The
// caller goes on after an error with q.After set to the last Record's Next. If that
// Record's Began differs, the daemon was restarted, and its sequence numbers begin anew.
func (c *Client) FollowRecord(ctx context.Context, q api.RecordQuery, each func(api.Record) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, err := c.send(ctx, http.MethodGet, "/v1/record/stream"+queryOf(q), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	watchdog := time.AfterFunc(silence, func() { cancel(errSilence) })
	defer watchdog.Stop()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		watchdog.Reset(silence)
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue // the end of an event, its number, which is also in the data, or a heartbeat
		}
		var r api.Record
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("read the daemon's record: %w", err)
		}
		if err := each(r); err != nil {
			return err
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	err = cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
	if errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("read the daemon's record: %w", err)
	}
	return fmt.Errorf("read the daemon's record: the daemon has ended, or has closed the connection (%w)", err)
}

// queryOf returns a query as a part of a URL.
func queryOf(q api.RecordQuery) string {
	values := url.Values{}
	if q.After > 0 {
		values.Set("after", strconv.FormatUint(q.After, 10))
	}
	if q.Limit > 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Last {
		values.Set("last", "true")
	}
	if len(q.Kinds) > 0 {
		var names []string
		for _, k := range q.Kinds {
			names = append(names, string(k))
		}
		values.Set("kinds", strings.Join(names, ","))
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}
