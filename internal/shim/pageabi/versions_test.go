package pageabi

import "testing"

func TestCommonVersion(t *testing.T) {
	for _, c := range []struct {
		a, b Versions
		want uint32
	}{
		{Versions{1, 1}, Versions{1, 1}, 1},
		{Versions{1, 2}, Versions{1, 1}, 1},
		{Versions{1, 3}, Versions{2, 5}, 3},
		{Versions{2, 2}, Versions{1, 1}, 0},
		{Versions{0, 0}, Versions{1, 2}, 0},
		{Versions{3, 2}, Versions{1, 4}, 0}, // not a range
		{Versions{1, 4294967295}, Versions{1, 2}, 2},
	} {
		if got := c.a.Common(c.b); got != c.want {
			t.Errorf("%v and %v: got %d, want %d", c.a, c.b, got, c.want)
		}
		if got := c.b.Common(c.a); got != c.want {
			t.Errorf("%v and %v: got %d, want %d", c.b, c.a, got, c.want)
		}
	}
}

func TestAcceptedPages(t *testing.T) {
	v := Versions{2, 3}
	for _, c := range []struct {
		page, status uint32
		want         bool
	}{{2, 1, true}, {3, 3, true}, {1, 1, false}, {4, 1, false}, {2, 4, false}, {2, 0, false}} {
		if got := v.Accepts(c.page, c.status); got != c.want {
			t.Errorf("page %d, status page %d: got %v, want %v", c.page, c.status, got, c.want)
		}
	}
}
