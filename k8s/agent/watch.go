package agent

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Watch follows the annotations of the pods of one node at the API server, because the
// container runtime does not pass on later changes.
//
// It makes one request, a watch of the metadata of the node's pods, which the server answers
// from memory with the pods that are there and goes on with changes. The server ends it after
// 30 to 60 minutes; the next one begins where it ended. There are no list requests, and no
// writes.
type Watch struct {
	Server string // URL of the API server
	Node   string // name of the node
	Files  string // folder with token and ca.crt of a service account that may watch pods
	Log    *slog.Logger

	min, max time.Duration // pauses between requests; zero: the usual ones
}

// serviceAccount is where Kubernetes mounts a pod's token.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// WatchInCluster returns the watch of an agent in a pod, given the node's name.
func WatchInCluster(node string, log *slog.Logger) (*Watch, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if node == "" || host == "" || port == "" {
		return nil, errors.New("watch the API server: the name of the node (--node) or KUBERNETES_SERVICE_HOST is missing; --watch is for agents in pods")
	}
	return &Watch{Server: "https://" + net.JoinHostPort(host, port), Node: node, Files: serviceAccount, Log: log}, nil
}

// Limits of a watch.
const (
	watchMinPause = time.Second // doubled after each failure, and up to half more or less
	watchMaxPause = time.Minute
	watchSilence  = 5 * time.Minute // the server sends a bookmark every minute
	maxWatchEvent = 16 << 20        // the server keeps objects of 1.5 MiB; escapes take six bytes for one
	anyVersion    = "0"             // begin with the pods that are there, from the server's memory
)

// errExpired is returned if the server no longer has the changes since a version.
var errExpired = errors.New("the version is too old")

// run reports annotations until ctx is done.
func (w *Watch) run(ctx context.Context, to *pods) {
	least, most := w.min, w.max
	if least == 0 {
		least, most = watchMinPause, watchMaxPause
	}
	version, pause, failed := anyVersion, least, false
	for {
		began := time.Now()
		if version == anyVersion {
			to.prune() // pods may have been deleted since
		}
		received, err := w.follow(ctx, &version, to)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errExpired) {
			version = anyVersion
		}
		if failed && received {
			w.Log.Info("API server is watched again")
		}
		if received {
			failed = false
		}
		if err != nil && !failed && !errors.Is(err, errExpired) {
			failed = true
			w.Log.Warn("watch of the API server ended; changed annotations have no effect until it works again", "error", err)
		}
		if time.Since(began) > most {
			pause = least
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)): // nodes must not ask all at once
		}
		pause = min(2*pause, most)
	}
}

// follow makes one watch from a version on, which it keeps up to date, until it ends. It
// reports whether the server sent anything.
func (w *Watch) follow(ctx context.Context, version *string, to *pods) (received bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	silence := time.AfterFunc(watchSilence, stop)
	defer silence.Stop()
	body, err := w.open(ctx, *version)
	if err != nil {
		return false, err
	}
	defer body.Close()
	events := bufio.NewScanner(body)
	events.Buffer(nil, maxWatchEvent)
	for events.Scan() {
		silence.Reset(watchSilence)
		received = true
		if err := take(events.Bytes(), version, to); err != nil {
			return received, err
		}
	}
	if err := events.Err(); err != nil {
		return received, fmt.Errorf("read events: %w", err)
	}
	return received, nil
}

// open sends the request and returns the body of the answer.
func (w *Watch) open(ctx context.Context, version string) (io.ReadCloser, error) {
	token, err := os.ReadFile(filepath.Join(w.Files, "token")) // each time: it is replaced every hour
	if err != nil {
		return nil, err
	}
	authorities, err := os.ReadFile(filepath.Join(w.Files, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(w.Files, "ca.crt"))
	}
	query := url.Values{
		"watch": {"1"}, "allowWatchBookmarks": {"true"}, "fieldSelector": {"spec.nodeName=" + w.Node}, "resourceVersion": {version},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.Server+"/api/v1/pods?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	req.Header.Set("User-Agent", "giveway-k8s")
	req.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1") // no specification, no status
	client := &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is for this server
	}
	answer, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusGone {
		return nil, errExpired
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 512)) // part of the message is better than none
	return nil, fmt.Errorf("watch the pods of node %s: status %d: %q", w.Node, answer.StatusCode, text)
}

// event is one event of a watch. Its object is a pod's metadata, or says what went wrong.
type event struct {
	Type   string
	Object struct {
		Code     int
		Message  string
		Metadata struct {
			UID             string
			ResourceVersion string
			Annotations     map[string]string
		}
	}
}

// take reports one event, and keeps version up to date: a watch from there on misses nothing.
// The first pods that a server sends are in no order, so until the first bookmark there is no
// such version.
func take(text []byte, version *string, to *pods) error {
	var e event
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("read an event: %w", err)
	}
	pod := &e.Object.Metadata
	switch e.Type {
	case "ADDED", "MODIFIED":
		to.annotate(pod.UID, pod.Annotations)
	case "DELETED":
		to.forget(pod.UID)
	case "ERROR":
		if e.Object.Code == http.StatusGone {
			return errExpired
		}
		return fmt.Errorf("the server ended the watch: %d: %.200q", e.Object.Code, e.Object.Message)
	}
	if e.Type == "BOOKMARK" || *version != anyVersion {
		*version = pod.ResourceVersion
	}
	return nil
}
