package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/internal/userdb"
	"github.com/giveway/giveway/sched"
)

// The users and groups of these tests, of which /etc/passwd and /etc/group know nothing.
const (
	lena     = 70001
	students = 70100
)

// directory is a getent of a machine with a directory: user lena is in the group students.
const directory = `#!/bin/sh
database=$1; shift
missing=0
for key; do
  case $database:$key in
  passwd:lena|passwd:70001) echo "lena:*:70001:70001:Lena:/home/lena:/bin/sh" ;;
  initgroups:lena) echo "lena                  70100" ;;
  group:70100|group:students) echo "students:*:70100:lena" ;;
  *) missing=2 ;;
  esac
done
exit $missing
`

// userDatabase returns databases with a script as getent; empty: there is none.
func userDatabase(t *testing.T, script string) *userdb.DB {
	t.Helper()
	path := filepath.Join(t.TempDir(), "getent")
	if script != "" {
		if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return &userdb.DB{Programs: []string{path}, Deadline: time.Second}
}

// sleeperOf starts a process of a user, with its uid as gid and with these other groups.
func sleeperOf(t *testing.T, uid uint32, groups ...uint32) proc.Process {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to start processes of other users")
	}
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := proc.Look(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestLimitsOfADirectoryUser: limits by the name or the number of a user or a group apply to users
// that only a directory has. The groups of a process count where the directory does not answer, and
// those of its user where the process has left them.
func TestLimitsOfADirectoryUser(t *testing.T) {
	for _, c := range []struct {
		name, match, getent string
		uid                 uint32
		groups              []uint32
		want                string
	}{
		{"group's number, no directory", "{group: 70100}", "", lena, []uint32{students}, "batch"},
		{"group's number, the directory hangs", "{group: 70100}", "#!/bin/sh\nsleep 600\n", lena, []uint32{students}, "batch"},
		{"group's number, own group", "{group: 70001}", "", lena, nil, "batch"},
		{"group's number, left", "{group: 70100}", directory, lena, nil, "batch"},
		{"group's name", "{group: students}", directory, lena, []uint32{students}, "batch"},
		{"group's name, left", "{group: students}", directory, lena, nil, "batch"},
		{"group's name, of a user without a name", "{group: stud*}", directory, 70002, []uint32{students}, "batch"},
		{"user's name", "{user: lena}", directory, lena, nil, "batch"},
		{"user's number", "{user: 70001}", "", lena, nil, "batch"},
		{"another group", "{group: students}", directory, 70002, []uint32{70200}, "online"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gates := newShim()
			d := newTestDaemon(gates)
			d.users.db = userDatabase(t, c.getent)
			conf, err := config.Parse("x.yaml", []byte("limits: [{match: "+c.match+", class: batch}]"))
			if err != nil {
				t.Fatal(err)
			}
			d.conf = &conf
			defer runDaemon(t, d)()
			p := sleeperOf(t, c.uid, c.groups...)
			pid, page := admitProcess(t, gates, p, "opencl")
			page.Hint(shimpage.HintWeight, 7)
			page.Hint(shimpage.HintClass, int64(sched.Online))
			var got api.Process
			eventually(t, "the hints are taken in", func() bool {
				for _, got = range d.Processes() {
					if w, ok := got.Attrs.Given().Get(attr.Weight); got.PID == pid && ok && w == 7 {
						return got.Class() != "standard"
					}
				}
				return false
			})
			if got.Class() != c.want {
				t.Errorf("a hint for class online gave class %s, want %s", got.Class(), c.want)
			}
			by := of(c.uid)
			by.PID = pid
			_, err = d.Change(by, pid, given("class=online"))
			if refused := err != nil && strings.Contains(err.Error(), "exceeds the limit"); refused != (c.want == "batch") {
				t.Errorf("set class=online: got %v", err)
			}
		})
	}
}

// TestNamesCheck: the status warns of names in rules and limits that no database has, and of a
// directory that does not answer.
func TestNamesCheck(t *testing.T) {
	const text = `
rules: [{match: {user: lena}, class: batch}, {match: {user: leena}, class: batch}, {match: {user: "7*"}, class: batch}]
limits: [{match: {group: students}, class: batch}, {match: {group: studnets, user: 70001}, class: batch}]`
	conf, err := config.Parse("x.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, getent string
		ok           bool
		want         string
	}{
		{"a directory", directory, false, "not known on this machine: user leena (line 2), group studnets (line 3)"},
		{"no directory", "", false, "user lena (line 2), user leena (line 2), group students (line 3), group studnets (line 3)"},
		{"it hangs", "#!/bin/sh\nsleep 600\n", false, "do not answer"},
		{"all are known", strings.ReplaceAll(directory, "*) missing=2", `*:leena|*:studnets) echo "$key:*:9:9" ;; *) missing=2`), true, "all 4"},
	} {
		d := newTestDaemon(newShim())
		d.conf, d.users.db = &conf, userDatabase(t, c.getent)
		got, used := d.namesCheck()
		if !used || got.OK != c.ok || !strings.Contains(got.Detail, c.want) {
			t.Errorf("%s: got %+v, want %q", c.name, got, c.want)
		}
	}
	d := newTestDaemon(newShim())
	if got, used := d.namesCheck(); used {
		t.Errorf("without names: got %+v, want no check", got)
	}
}
