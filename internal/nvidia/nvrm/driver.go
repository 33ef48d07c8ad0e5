package nvrm

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

// Driver is the kernel module that is loaded.
type Driver struct {
	Version string // such as 580.159.04
	Open    bool   // it is the open kernel module
}

// Where the driver states its version, below the root directory.
const (
	procVersion = "proc/driver/nvidia/version"
	sysVersion  = "sys/module/nvidia/version"
)

var versionPattern = regexp.MustCompile(`\b[0-9]{3}\.[0-9]+(\.[0-9]+)?\b`)

// ReadDriver reads which driver is loaded. root is the root directory, os.DirFS("/")
// but in tests. The error wraps fs.ErrNotExist if no driver is loaded.
func ReadDriver(root fs.FS) (Driver, error) {
	var errs []error
	for _, name := range []string{procVersion, sysVersion} {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		line, _, _ := strings.Cut(string(text), "\n")
		if v := versionPattern.FindString(line); v != "" {
			return Driver{Version: v, Open: strings.Contains(line, "Open Kernel Module")}, nil
		}
		errs = append(errs, fmt.Errorf("no version in /%s: %q", name, line))
	}
	return Driver{}, fmt.Errorf("read driver version: %w", errors.Join(errs...))
}

// Branch is one row of the table of drivers. docs/DRIVERS.md says how each row was
// checked and how to add one.
type Branch struct {
	Number int // the first number of its versions
	// First and Last are the oldest and the newest release whose headers were compared
	// with every struct, offset and number that nvrm and nvtrace use. Empty: the source
	// was not available.
	First, Last string
	Releases    int      // how many were compared, First and Last included
	Ran         []string // releases that were run on hardware
}

// Branches is the table of drivers.
var Branches = []Branch{
	{Number: 535, First: "535.43.02", Last: "535.288.01", Releases: 38},
	{Number: 545, First: "545.23.06", Last: "545.29.06", Releases: 5},
	{Number: 550, First: "550.40.07", Last: "550.163.01", Releases: 34},
	{Number: 555, First: "555.42.02", Last: "555.58.02", Releases: 5},
	{Number: 560, First: "560.28.03", Last: "560.35.03", Releases: 3},
	{Number: 565, First: "565.57.01", Last: "565.77", Releases: 2},
	{Number: 570, First: "570.86.15", Last: "570.211.01", Releases: 25},
	{Number: 575, First: "575.51.02", Last: "575.64.05", Releases: 6},
	{Number: 580, First: "580.65.06", Last: "580.142", Releases: 21, Ran: []string{"580.159.04"}},
	{Number: 590, First: "590.44.01", Last: "590.48.01", Releases: 2},
	{Number: 595, First: "595.44.02", Last: "595.45.04", Releases: 3},
	{Number: 610}, // gVisor's table lists 610.57.04 without a change to a struct used here
	{Number: 615}, // likewise 615.62.00
}

// Branch returns the row of the driver's branch. known says that the layouts of the
// branch were checked: no layout has ever changed within a branch, so a release that
// is newer than Last counts as well. Of any other driver nothing may be changed
// before SelfTest has passed.
func (d Driver) Branch() (row Branch, known bool) {
	number, _, _ := strings.Cut(d.Version, ".")
	for _, b := range Branches {
		if strconv.Itoa(b.Number) == number {
			return b, b.Releases > 0
		}
	}
	return Branch{}, false
}
