package pool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/giveway/giveway/internal/safepath"
)

// Status is a pool and its members.
type Status struct {
	Info
	Folder  string       `json:"folder"`
	Control int          `json:"control"` // pid of the control daemon; zero: it does not run
	Servers []int        `json:"servers"`
	Faulted []int        `json:"faulted"` // those of the servers that refuse clients after a fault
	Clients []int        `json:"clients"`
	Members []MemberInfo `json:"members"`
}

// each calls f for each pool of this user in this pid namespace, and returns all errors. One
// pool that cannot be read does not hide the others.
func each(f func(*Pool) error) error {
	parent := folderFor(os.Geteuid())
	if _, err := os.Lstat(parent); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	folder, err := safepath.OpenFolder(parent)
	if err != nil {
		return fmt.Errorf("read the folder of pools: %w (%s)", err, FolderEnv)
	}
	defer folder.Close()
	namespace, err := pidNamespace()
	if err != nil {
		return err
	}
	entries, failed := os.ReadDir(folder.At("."))
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		p, err := openExisting(filepath.Join(parent, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // not a pool
		}
		if err == nil {
			if p.Namespace == namespace {
				err = f(p)
			}
			p.close()
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("pool in %s: %w", filepath.Join(parent, e.Name()), err))
		}
	}
	return failed
}

// List returns the pools of this user that run. With an error it returns those that it
// could read.
func List() (all []Status, err error) {
	err = each(func(p *Pool) error {
		lock, err := p.lock()
		if err != nil {
			return err
		}
		defer lock.Close()
		control, err := p.control()
		if err != nil || control == 0 {
			return err
		}
		s := Status{Info: p.Info, Folder: p.dir, Control: control}
		var failed [4]error
		s.Members, failed[0] = p.members()
		s.Servers, failed[1] = p.servers()
		s.Clients, failed[2] = p.clientsOf(s.Servers)
		s.Faulted, failed[3] = p.faulted(s.Servers)
		all = append(all, s)
		return errors.Join(failed[:]...)
	})
	return all, err
}

// EndUnused ends the pools of this user that have no member, and returns how many.
func EndUnused() (ended int, err error) {
	err = each(func(p *Pool) error {
		if control, err := p.control(); err != nil || control == 0 {
			return err
		}
		done, err := p.endUnused(func() {})
		if done {
			ended++
		}
		return err
	})
	return ended, err
}
