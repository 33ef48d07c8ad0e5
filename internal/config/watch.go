package config

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// watchEvery is the period of looking at a file. Unlike inotify on the file, it also
// notices a file that is moved into its place, a changed link, and a folder mounted over
// it.
var watchEvery = time.Second

// Stamp returns text that changes when the file does. It is taken before the file is read, so that
// a change during the reading is noticed.
func Stamp(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprint(st.Dev, st.Ino, st.Uid, st.Mode, info.Size(), info.ModTime().UnixNano())
}

// Watch loads a file each time it changes, and at each signal, until ctx is done. It calls
// loaded with the content, or with what is wrong with the file. A file that is being
// written is loaded once it has been the same for one period. The file with the stamp known
// has been loaded already.
func Watch(ctx context.Context, path, known string, signals <-chan os.Signal, loaded func(Config, error)) {
	last := known
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			known = Stamp(path)
			last = known
			loaded(Load(path))
		case <-tick.C:
			now := Stamp(path)
			if now == last && now != known { // it has settled
				known = now
				loaded(Load(path))
			}
			last = now
		}
	}
}
