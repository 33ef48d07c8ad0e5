package config

import (
	"context"
	"os"
	"time"
)

// watchEvery is the period of looking at a file. Unlike inotify on the file, it also
// notices a file that is moved into its place, a changed link, and a folder mounted over
// it.
var watchEvery = time.Second

// stamp is the state of a file, by which a change is noticed.
type stamp struct {
	info os.FileInfo // nil: none could be read
	err  string      // why
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{err: err.Error()}
	}
	return stamp{info: info}
}

func (s stamp) same(t stamp) bool {
	if s.info == nil || t.info == nil {
		return s.info == t.info && s.err == t.err
	}
	return os.SameFile(s.info, t.info) && s.info.Size() == t.info.Size() && s.info.ModTime().Equal(t.info.ModTime())
}

// Watch loads a file each time it changes, and at each signal, until ctx is done. It calls
// loaded with the content, or with what is wrong with the file. A file that is being
// written is loaded once it has been the same for one period.
func Watch(ctx context.Context, path string, signals <-chan os.Signal, loaded func(Config, error)) {
	known := stampOf(path)
	last := known
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			loaded(Load(path))
		case <-tick.C:
			now := stampOf(path)
			settled := now.same(last)
			last = now
			if settled && !now.same(known) {
				known = now
				loaded(Load(path))
			}
		}
	}
}
