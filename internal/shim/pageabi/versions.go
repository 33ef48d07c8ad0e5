package pageabi

import "fmt"

// Versions are the versions of a page that one side understands: all from the lowest to the
// highest.
type Versions struct{ Lowest, Highest uint32 }

// Understood are the versions that this package understands.
var Understood = Versions{LowestVersion, Version}

// Common returns the highest version that both sides understand, or zero.
func (v Versions) Common(other Versions) uint32 {
	version := min(v.Highest, other.Highest)
	if version < v.Lowest || version < other.Lowest {
		return 0
	}
	return version
}

// Has reports whether a version is one of v.
func (v Versions) Has(version uint32) bool { return v.Lowest <= version && version <= v.Highest }

// String returns the versions as a range, such as "1 to 2".
func (v Versions) String() string {
	if v.Lowest == v.Highest {
		return fmt.Sprint(v.Lowest)
	}
	return fmt.Sprintf("%d to %d", v.Lowest, v.Highest)
}

// Accepts reports whether a page and a status page of these versions can be used. The version
// of the status page may be lower than that of the page.
func (v Versions) Accepts(page, status uint32) bool {
	return v.Has(page) && 0 < status && status <= v.Highest
}
