package config

import (
	"context"
	"os"
	"time"
)

// watchEvery is how often a file is looked at. Once a second is nothing to the
// kernel, and it sees what watching the file itself does not: a file moved into
// its place, a link turned elsewhere, a folder mounted over it.
var watchEvery = time.Second

// stamp is how a change of a file is noticed.
type stamp struct {
	info os.FileInfo
	err  string
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

// Watch loads a file each time it has changed since Watch began, until ctx is
// done, and calls onChange with what it says, or onError if it is wrong or gone:
// then what was before stays. A file that is being written is left alone until
// it has been the same for a while.
func Watch(ctx context.Context, path string, onChange func(Config), onError func(error)) {
	loaded := stampOf(path)
	last := loaded
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := stampOf(path)
		settled := now.same(last)
		last = now
		if !settled || now.same(loaded) {
			continue
		}
		loaded = now
		if c, err := Load(path); err != nil {
			onError(err)
		} else {
			onChange(c)
		}
	}
}
