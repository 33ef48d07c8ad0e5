package scenario

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/yamlfile"
)

// readTrace reads the file that field trace names. Each line is an arrival, as the time from
// the start of the client, in order. A number without a unit is in milliseconds. #
// begins a comment.
func readTrace(f *form, open opener) []time.Duration {
	name, ok := f.String("trace", "the name of a file")
	if !ok {
		return nil
	}
	data, err := open(name)
	if err != nil {
		f.Wrong("trace", "%v", err)
		return nil
	}
	times, err := parseTrace(data)
	if err != nil {
		f.Wrong("trace", "%s:%v", yamlfile.Clip(name), err)
	}
	return times
}

func parseTrace(data []byte) ([]time.Duration, error) {
	var times []time.Duration
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		d, err := parseMillis(text)
		switch {
		case err != nil || d < 0 || d > maxLength:
			return nil, fmt.Errorf("%d: %q is not a time from 0 to 24h, such as 12.5 (milliseconds) or 12500us", n, yamlfile.Clip(text))
		case len(times) > 0 && d < times[len(times)-1]:
			return nil, fmt.Errorf("%d: %s is before the arrival on the line above, %s", n, text, format.ExactDuration(times[len(times)-1]))
		case len(times) == maxArrivals:
			return nil, fmt.Errorf("%d: more than %d arrivals", n, maxArrivals)
		}
		times = append(times, d)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf(" %w", err)
	}
	if len(times) == 0 {
		return nil, errors.New(" the file has no arrivals")
	}
	return times, nil
}

func parseMillis(s string) (time.Duration, error) {
	if x, err := strconv.ParseFloat(s, 64); err == nil {
		if !(x >= 0 && x <= 1e9) {
			return -1, nil
		}
		return time.Duration(x * float64(time.Millisecond)), nil
	}
	return time.ParseDuration(s)
}
