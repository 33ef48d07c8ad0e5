package pool

import (
	"errors"
	"os"
	"path/filepath"
)

// Status is a pool and its members.
type Status struct {
	Info
	Folder  string   `json:"folder"`
	Control int      `json:"control"` // pid of the control daemon; zero: it does not run
	Servers []int    `json:"servers"`
	Clients []int    `json:"clients"`
	Members []member `json:"members"`
}

// each calls f for each pool of this user.
func each(f func(*Pool) error) error {
	var failed error
	for _, parent := range parents() {
		entries, err := os.ReadDir(parent)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			p, err := openExisting(filepath.Join(parent, e.Name()))
			if errors.Is(err, os.ErrNotExist) {
				continue // not a pool
			}
			if err == nil {
				err = f(p)
				p.close()
			}
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// List returns the pools of this user that run.
func List() (all []Status, err error) {
	err = each(func(p *Pool) error {
		lock, err := p.lock()
		if err != nil {
			return err
		}
		defer lock.Close()
		s := Status{Info: p.Info, Folder: p.dir, Control: controlPID(p.pipe())}
		if s.Control == 0 {
			return nil
		}
		var failed [3]error
		s.Members, failed[0] = p.members()
		s.Servers, failed[1] = p.servers()
		s.Clients, failed[2] = p.clients()
		all = append(all, s)
		return errors.Join(failed[:]...)
	})
	return all, err
}

// EndUnused ends the pools of this user that have no member, and returns how many.
func EndUnused() (ended int, err error) {
	err = each(func(p *Pool) error {
		if controlPID(p.pipe()) == 0 {
			return nil
		}
		done, err := p.endUnused(func() {})
		if done {
			ended++
		}
		return err
	})
	return ended, err
}
