package top

import (
	"testing"
)

// keyNames are the keys that the fuzzer presses.
var keyNames = []string{
	"up", "down", "pgup", "pgdown", "home", "end", "enter", "esc", "backspace", "space", "ctrl+u",
	"c", "w", "p", "u", "y", "n", "t", "r", "<", ">", "/", "?", "o", "b", "i", "1", "0", "x", "q",
}

// FuzzScreen presses keys, changes the size and takes snapshots in any order. The screen fits
// at all times, and no order is given without a y.
func FuzzScreen(f *testing.F) {
	f.Add([]byte("abcdefghijklmnop"), "name")
	f.Add([]byte{13, 15, 200, 12, 26, 6, 15, 255, 3, 230, 22, 28}, "\x1b[2J")
	f.Fuzz(func(t *testing.T, script []byte, name string) {
		s := New(Look{UTF8: len(script)%2 == 0, Colour: len(script)%3 == 0}, 80, 24)
		for i, b := range script[:min(len(script), 60)] {
			switch {
			case int(b) < len(keyNames):
				if e := press(s, keyNames[b]); e.Order != nil && keyNames[b] != "y" {
					t.Fatalf("key %s gave the order %+v", keyNames[b], e.Order)
				}
			case b < 100:
				s.Resize(int(b-30)*2, int(b)%31)
			case b < 240:
				snap := snapshotAt(i)
				snap.Processes = snap.Processes[int(b)%len(snap.Processes):]
				snap.Processes[0].Command = name
				s.Take(snap)
			case b < 250:
				s.Explained(explainFacts(name), nil)
			default:
				s.Paste(name)
			}
			checkSize(t, "fuzz", s, s.View())
		}
	})
}
