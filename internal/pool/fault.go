package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// faultInterval is how often a keeper asks MPS for a fault. An answer takes two commands of the
// control program, and a pool may run for days. Tests set it.
var faultInterval = 5 * time.Second

// faultFile, in a pool's folder, describes a fault. The keeper holds it locked while the fault lasts.
const faultFile = "fault"

// Fault says that MPS takes no new member of a pool, because a member has had a fault.
type Fault struct {
	Label   string `json:"label"`
	Clients []int  `json:"clients"` // of the server; it recovers when they have exited
}

// Faults returns the faults that the keepers of this user's pools have seen last. It does not wait
// for MPS, so a list that is shown again and again can have them. With an error it returns
// those that it could read.
func Faults() (all []Fault, err error) {
	err = each(func(p *Pool) error {
		f, err := os.Open(p.folder.At(faultFile))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
			return nil // of a keeper that was killed
		}
		var fault Fault
		if err := json.NewDecoder(io.LimitReader(f, 1<<16)).Decode(&fault); err != nil {
			return fmt.Errorf("read its fault: %w", err)
		}
		all = append(all, fault)
		return nil
	})
	return all, err
}

// followFault asks MPS for a fault, at most every faultInterval. It logs the begin and the end of
// one, and keeps faultFile up to date.
func (k *keeper) followFault() {
	if time.Since(k.asked) < faultInterval {
		return
	}
	clients, err := k.faultedClients()
	k.asked = time.Now()
	switch {
	case errors.Is(err, errNoPIDs): // a server has exited meanwhile
	case err != nil:
		k.warn("MPS does not say whether a member of the pool has had a fault; trying again", err)
	case len(clients) == 0:
		k.endFault()
	case !slices.Equal(clients, k.clients):
		if err := k.reportFault(clients); err != nil {
			k.warn("fault of a member of the pool cannot be reported; trying again", err)
		}
	}
}

// faultedClients returns the clients, in order of pid, of the servers that refuse clients after
// a fault. A server without clients has no fault.
func (k *keeper) faultedClients() ([]int, error) {
	servers, err := k.servers()
	if err != nil {
		return nil, err
	}
	faulted, err := k.faulted(servers)
	if err != nil {
		return nil, err
	}
	clients, err := k.clientsOf(faulted)
	slices.Sort(clients)
	return clients, err
}

// reportFault writes faultFile. A reader finds the whole file and its lock, because both are
// there before the file has its name.
func (k *keeper) reportFault(clients []int) error {
	temporary := k.folder.At(faultFile + ".new")
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = json.NewEncoder(f).Encode(Fault{Label: k.Label, Clients: clients})
	if err == nil && !tryLock(f) {
		err = fmt.Errorf("another process has locked %s", temporary)
	}
	if err == nil {
		err = os.Rename(temporary, k.folder.At(faultFile))
	}
	if err != nil {
		f.Close()
		return err
	}
	if k.fault != nil {
		k.fault.Close()
	} else {
		k.log.Warn("a member of the pool has had a fault; MPS takes no client until its clients have exited", "folder", k.dir, "clients", clients)
	}
	k.fault, k.clients = f, clients
	return nil
}

// endFault removes faultFile, which may be of a keeper that was killed.
func (k *keeper) endFault() {
	_ = os.Remove(k.folder.At(faultFile)) // without its lock it says nothing
	if k.fault != nil {
		k.log.Info("pool takes members again after a fault", "folder", k.dir)
		k.fault.Close()
		k.fault, k.clients = nil, nil
	}
}
