// Package pagetest lays out a report in a real browser, for tests: it finds texts that
// overlap and content that is cut off.
package pagetest

import (
	"context"
	"encoding/json"
	"errors"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Layout is what a browser made of a page.
type Layout struct {
	Texts    int      // visible texts
	Overlaps []string // pairs of texts that overlap
	Outside  []string // texts that reach beyond the page's width
	Scrolled []string // elements whose content is wider than they are
	Width    int      // of the whole page
}

// browsers are the names under which distributions install Chromium.
var browsers = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

// In lays out a page in a window of a width, and skips the test if there is no browser.
func In(t *testing.T, page string, width int) Layout {
	t.Helper()
	browser := ""
	for _, name := range browsers {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("no browser here: install chromium to check the layout of pages")
	}
	// A window cannot be as narrow as a phone, so the page is in a frame.
	dir := t.TempDir()
	file := filepath.Join(dir, "frame.html")
	frame := strings.NewReplacer("WIDTH", strconv.Itoa(width), "PAGE", html.EscapeString(page)).Replace(frameHTML)
	if err := os.WriteFile(file, []byte(frame), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--user-data-dir="+filepath.Join(dir, "profile"), "--window-size=1400,1000", "--dump-dom", "file://"+file)
	out, err := cmd.Output()
	_, text, found := strings.Cut(string(out), `<pre id="layout">`)
	text, _, ended := strings.Cut(text, "</pre>")
	if !found || !ended {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			out = append(out, failed.Stderr...)
		}
		t.Fatalf("the browser reports no layout: %v\n%.2000s", err, out)
	}
	var l Layout
	if err := json.Unmarshal([]byte(html.UnescapeString(text)), &l); err != nil {
		t.Fatal(err)
	}
	return l
}

// frameHTML measures the page in its frame: the boxes of all texts, cut to the elements that
// scroll. Boxes may touch, and those of letters have some room above and below.
const frameHTML = `<!doctype html>
<meta charset="utf-8">
<iframe width="WIDTH" height="900" style="border:0" srcdoc="PAGE"></iframe>
<pre id="layout"></pre>
<script>
window.onload = function () {
  const frame = document.querySelector('iframe'), doc = frame.contentDocument, view = frame.contentWindow;
  const result = {Texts: 0, Overlaps: [], Outside: [], Scrolled: [], Width: doc.documentElement.scrollWidth};
  const name = e => e.tagName + (e.className.baseVal ?? e.className ? '.' + (e.className.baseVal ?? e.className) : '');
  const boxes = [];
  const walk = doc.createTreeWalker(doc.body, NodeFilter.SHOW_TEXT);
  for (let n; n = walk.nextNode();) {
    const e = n.parentElement, text = n.textContent.trim();
    if (!text || e.closest('script,style,title') || !e.checkVisibility()) continue;
    let clip = {left: -1e9, right: 1e9, top: -1e9, bottom: 1e9};
    for (let p = e; p && p !== doc.body; p = p.parentElement) {
      if (p.namespaceURI.endsWith('svg') || view.getComputedStyle(p).overflowX === 'visible') continue;
      const b = p.getBoundingClientRect();
      clip = {left: Math.max(clip.left, b.left), right: Math.min(clip.right, b.right), top: Math.max(clip.top, b.top), bottom: Math.min(clip.bottom, b.bottom)};
    }
    const range = doc.createRange();
    range.selectNodeContents(n);
    for (const r of range.getClientRects()) {
      const b = {text, e, n, left: Math.max(r.left, clip.left), right: Math.min(r.right, clip.right), top: Math.max(r.top, clip.top), bottom: Math.min(r.bottom, clip.bottom)};
      if (b.right - b.left < 1 || b.bottom - b.top < 1) continue;
      boxes.push(b);
      if (b.right > WIDTH + 1 || b.left < -1) result.Outside.push(text.slice(0, 60));
    }
    result.Texts++;
  }
  boxes.sort((a, b) => a.top - b.top);
  for (let i = 0; i < boxes.length; i++) {
    for (let j = i + 1; j < boxes.length && boxes[j].top < boxes[i].bottom; j++) {
      const a = boxes[i], b = boxes[j];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      const sticky = [a, b].some(x => x.e.closest('th') && view.getComputedStyle(x.e.closest('th')).position === 'sticky');
      if (a.n !== b.n && across > 1 && down > 3 && !sticky && result.Overlaps.length < 50) result.Overlaps.push(a.text.slice(0, 40) + ' | ' + b.text.slice(0, 40));
    }
  }
  for (const e of doc.body.querySelectorAll('*')) {
    if (['auto', 'scroll', 'hidden'].includes(view.getComputedStyle(e).overflowX) && !e.namespaceURI.endsWith('svg') && e.scrollWidth > e.clientWidth + 1) {
      result.Scrolled.push(name(e) + ' ' + e.scrollWidth + ' in ' + e.clientWidth + ': ' + e.textContent.trim().slice(0, 40));
    }
  }
  document.getElementById('layout').textContent = JSON.stringify(result);
};
</script>`
