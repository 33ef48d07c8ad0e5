package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/server"
)

// TestFolderOfTheSocket: the daemon listens only where no other user can put a link or a
// socket of its own in the place of the daemon's.
func TestFolderOfTheSocket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make folders of another user")
	}
	for _, c := range []struct {
		name, path string // path of the socket in the folder of the test
		make       func(*files)
		want       string // empty: the daemon listens
	}{
		{"a new folder", "a/b/sock", func(*files) {}, ""},
		{"a sticky folder above", "tmp/own/sock", func(f *files) { f.folder("tmp", 0, 0o1777) }, ""},
		{"a link of root", "link/sock", func(f *files) { f.folder("real", 0, 0o755); f.link("real", "link", 0) }, ""},
		{"a link to a link upwards", "x/link/sock", func(f *files) {
			f.folder("real", 0, 0o755)
			f.folder("x", 0, 0o755)
			f.link("../real", "link2", 0)
			f.link("../link3", "x/link", 0)
			f.link("real", "link3", 0)
		}, ""},
		{"another user's folder", "theirs/sock", func(f *files) { f.folder("theirs", stranger, 0o755) }, "belongs to user 65534"},
		{"another user's folder above", "theirs/own/sock", func(f *files) {
			f.folder("theirs", stranger, 0o755)
			f.folder("theirs/own", 0, 0o755)
		}, "belongs to user 65534"},
		{"a folder that all users may write", "open/sock", func(f *files) { f.folder("open", 0, 0o777) }, "other users may write to"},
		{"a folder that a group may write", "open/sock", func(f *files) { f.folder("open", 0, 0o775) }, "other users may write to"},
		{"a folder above that all may write", "open/own/sock", func(f *files) {
			f.folder("open", 0, 0o777)
			f.folder("open/own", 0, 0o755)
		}, "other users may write to"},
		{"a sticky folder", "tmp/sock", func(f *files) { f.folder("tmp", 0, 0o1777) }, "own, for example one made with: mkdir -m 700"},
		{"another user's link in a sticky folder", "tmp/link/sock", func(f *files) {
			f.folder("tmp", 0, 0o1777)
			f.folder("real", 0, 0o755)
			f.link("../real", "tmp/link", stranger)
		}, "belongs to user 65534"},
		{"a loop of links", "a/sock", func(f *files) { f.link("b", "a", 0); f.link("a", "b", 0) }, "too many levels"},
		{"a file", "plain/sock", func(f *files) { f.check(os.WriteFile(f.at("plain"), nil, 0o644)) }, "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &files{t, t.TempDir()}
			c.make(f)
			s := newServer(newFake(), server.Config{Socket: f.at(c.path)})
			if c.want == "" {
				serve(t, s)
				if _, err := client.New(f.at(c.path)).Status(t.Context()); err != nil {
					t.Error(err)
				}
				return
			}
			if err := s.Listen(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			for _, name := range []string{c.path, c.path + ".lock"} {
				if _, err := os.Lstat(f.at(name)); err == nil {
					t.Errorf("%s was made", name)
				}
			}
		})
	}
}

// TestPlainFileInPlaceOfTheSocket: it is left alone, and no lock is made beside it.
func TestPlainFileInPlaceOfTheSocket(t *testing.T) {
	f := &files{t, t.TempDir()}
	f.check(os.WriteFile(f.at("passwd"), []byte("root"), 0o600))
	err := newServer(newFake(), server.Config{Socket: f.at("passwd")}).Listen()
	if err == nil || !strings.Contains(err.Error(), "a file that is not a socket is in its place") {
		t.Errorf("got %v", err)
	}
	if all, err := os.ReadDir(f.dir); err != nil || len(all) != 1 {
		t.Errorf("got files %v, %v, want the plain file alone", all, err)
	}
}

// files makes folders and links for a test.
type files struct {
	*testing.T
	dir string
}

func (f *files) at(name string) string { return filepath.Join(f.dir, name) }

func (f *files) check(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *files) folder(name string, uid int, mode uint32) {
	f.Helper()
	f.check(os.Mkdir(f.at(name), 0o700))
	f.check(os.Chown(f.at(name), uid, uid))
	f.check(syscall.Chmod(f.at(name), mode))
}

func (f *files) link(target, name string, uid int) {
	f.Helper()
	f.check(os.Symlink(target, f.at(name)))
	f.check(os.Lchown(f.at(name), uid, uid))
}

// TestModeOfTheSocket: every user may connect, whatever the umask, which stays as it was.
func TestModeOfTheSocket(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	socket := filepath.Join(t.TempDir(), "sock")
	serve(t, newServer(newFake(), server.Config{Socket: socket}))
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("socket: got %v, %v; want mode 0666", info, err)
	}
	if mask := syscall.Umask(0o077); mask != 0o077 {
		t.Errorf("the umask is %#o now, want 077", mask)
	}
}

// TestOwnerOfTheToken: a token that another user can choose is refused.
func TestOwnerOfTheToken(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make files of another user")
	}
	f := &files{t, t.TempDir()}
	for _, c := range []struct {
		uid  int
		mode uint32
		want string
	}{
		{0, 0o600, ""},
		{0, 0o400, ""},
		{stranger, 0o600, "belongs to user 65534"},
		{0, 0o620, "other users may write to"},
		{0, 0o602, "other users may write to"},
		{0, 0o640, "chmod 600"},
	} {
		path := f.at("token")
		os.Remove(path)
		f.check(os.WriteFile(path, []byte("0123456789abcdef"), 0o600))
		f.check(os.Chown(path, c.uid, 0))
		f.check(syscall.Chmod(path, c.mode))
		err := newServer(newFake(), server.Config{TCP: "127.0.0.1:0", TokenFile: path}).Listen()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("owner %d, mode %#o: got %v, want %q", c.uid, c.mode, err, c.want)
		}
	}
}
