package userdb

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"
)

// directory is a getent of a machine with a directory: user lena (70001) in the groups 70001, 70100
// (students) and 70200, which has no name. Its initgroups has the group of the user, too.
const directory = `#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
database=$1; shift
missing=0
for key; do
  case $database:$key in
  passwd:lena|passwd:70001) echo "lena:*:70001:70001:Lena:/home/lena:/bin/sh" ;;
  initgroups:lena) echo "lena                  70100 70200" ;;
  group:70001) echo "lena:*:70001:" ;;
  group:70100|group:students) echo "students:*:70100:lena" ;;
  *) missing=2 ;;
  esac
done
exit $missing
`

// fake returns databases with a program as getent, and what it was asked.
func fake(t *testing.T, script string) (db *DB, asked func() string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "getent")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return &DB{Programs: []string{"/nowhere/getent", path}}, func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "asked"))
		return string(text)
	}
}

// TestDirectory: users and groups of a directory are found by number and by name, with their groups.
// Those of /etc/passwd and /etc/group are not asked for.
func TestDirectory(t *testing.T) {
	db, asked := fake(t, directory)
	want := User{"lena", 70001, []uint32{70001, 70100, 70200}}
	if u, found, err := db.User(70001); !reflect.DeepEqual(u, want) || !found || err != nil {
		t.Errorf("user 70001: got %+v, %v, %v; want %+v", u, found, err, want)
	}
	if u, found, err := db.User(70002); found || err != nil {
		t.Errorf("user 70002: got %+v, %v, %v; want none", u, found, err)
	}
	if names, err := db.GroupNames([]uint32{0, 70100, 70200}); !maps.Equal(names, map[uint32]string{0: "root", 70100: "students"}) || err != nil {
		t.Errorf("names of groups: got %v, %v", names, err)
	}
	if uids, err := db.UIDs([]string{"root", "lena", "lenna", "-s", ""}); !maps.Equal(uids, map[string]uint32{"root": 0, "lena": 70001}) || err != nil {
		t.Errorf("uids: got %v, %v", uids, err)
	}
	if gids, err := db.GIDs([]string{"root", "students"}); !maps.Equal(gids, map[string]uint32{"root": 0, "students": 70100}) || err != nil {
		t.Errorf("gids: got %v, %v", gids, err)
	}
	const want2 = "passwd 70001\ninitgroups lena\npasswd 70002\ngroup 70100 70200\npasswd lena lenna\ngroup students\n"
	if got := asked(); got != want2 {
		t.Errorf("getent was asked:\n%s\nwant:\n%s", got, want2)
	}
	if u, found, err := db.User(0); u.Name != "root" || !slices.Contains(u.Groups, 0) || !found || err != nil || asked() != want2 {
		t.Errorf("root: got %+v, %v, %v, and getent was asked %q", u, found, err, asked())
	}
}

// TestDirectoryThatHangs: a directory that does not answer delays one caller for the deadline, and
// for a while no other. What the files have is found.
func TestDirectoryThatHangs(t *testing.T) {
	db, _ := fake(t, "#!/bin/sh\nsleep 600 & sleep 600\n")
	db.Deadline = 100 * time.Millisecond
	began := time.Now()
	for range 20 {
		if _, _, err := db.User(70001); !errors.Is(err, ErrUnanswered) {
			t.Errorf("got %v, want that the databases do not answer", err)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("20 lookups took %v", took)
	}
	if u, found, err := db.User(0); u.Name != "root" || !found || err != nil {
		t.Errorf("root: got %+v, %v, %v", u, found, err)
	}
}

// TestWithoutGetent: a machine without getent has the users of the files.
func TestWithoutGetent(t *testing.T) {
	db := &DB{Programs: []string{"/nowhere/getent"}}
	if _, found, err := db.User(70001); found || err != nil {
		t.Errorf("got %v, %v; want no user and no error", found, err)
	}
	if names, err := db.GroupNames([]uint32{0, 70100}); !maps.Equal(names, map[uint32]string{0: "root"}) || err != nil {
		t.Errorf("got %v, %v", names, err)
	}
}
