package format_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/format"
)

func TestNumbers(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	for _, c := range []struct{ got, want string }{
		{format.Duration(0), "0"},
		{format.Duration(7), "7.00ns"},
		{format.Duration(999), "999ns"},
		{format.Duration(1000), "1.00us"},
		{format.Duration(44 * us), "44.0us"},
		{format.Duration(999_600), "1.00ms"},
		{format.Duration(1190 * us), "1.19ms"},
		{format.Duration(13305 * us), "13.3ms"},
		{format.Duration(999_499 * us), "999ms"},
		{format.Duration(999_600 * us), "1.00s"},
		{format.Duration(time.Hour), "3600s"},
		{format.Duration(-3 * ms), "-3.00ms"},
		{format.ExactDuration(20 * time.Second), "20s"},
		{format.ExactDuration(time.Hour), "1h"},
		{format.ExactDuration(1500 * ms), "1.5s"},
		{format.ExactDuration(44 * us), "44us"},
		{format.Ratio(1.094), "1.09x"},
		{format.Ratio(13305), "13305x"},
		{format.Ratio(math.NaN()), format.Missing},
		{format.Rate(4977.4), "4977/s"},
		{format.Rate(0), "0/s"},
		{format.Rate(math.Inf(1)), format.Missing},
		{format.Number(1e300), "1e+300"},
		{format.Number(0.00123), "0.00123"},
		{format.Percent(0), "0.0%"},
		{format.Percent(0.0004), "<0.1%"},
		{format.Percent(0.291), "29.1%"},
		{format.Percent(0.9146), "91.5%"},
		{format.Percent(0.99999), ">99.9%"},
		{format.Percent(1), "100.0%"},
		{format.Percent(1.0346), "103.5%"},
		{format.Percent(math.NaN()), format.Missing},
		{format.Integer(0), "0"},
		{format.Integer(999), "999"},
		{format.Integer(uint64(1234567)), "1,234,567"},
		{format.Bytes(0), "0B"},
		{format.Bytes(999), "999B"},
		{format.Bytes(999_600), "1.00MB"},
		{format.Bytes(40_393_817), "40.4MB"},
		{format.Bytes(511_000_000_000), "511GB"},
		{format.Plural(1, "client"), "1 client"},
		{format.Plural(3, "client"), "3 clients"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestTableAlignsColumns(t *testing.T) {
	var table format.Table
	table.Add("name", "rate")
	table.Add("é", "5/s").Note = "a note"
	table.Add()
	table.Add("train", "405/s")
	var b bytes.Buffer
	if err := table.Write(&b, 1); err != nil {
		t.Fatal(err)
	}
	want := "name    rate\né        5/s  a note\n\ntrain  405/s\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
