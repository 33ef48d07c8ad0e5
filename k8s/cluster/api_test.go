package cluster

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// answer is an answer of the API server. An error of the connection has status 0.
type answer struct {
	status int
	body   string
}

func (a answer) ok() bool { return a.status/100 == 2 }

// decode reads the answer; it changes nothing if the request was refused.
func (a answer) decode(v any) {
	if a.ok() {
		_ = json.Unmarshal([]byte(a.body), v) // an incomplete answer leaves zero values, which no test accepts
	}
}

var apiClient = &http.Client{
	Timeout:   20 * time.Second,
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, // the server makes its own certificate
}

// request sends a request to the API server.
func request(method, path, contentType string, body []byte) answer {
	req, err := http.NewRequest(method, server+path, bytes.NewReader(body))
	if err != nil {
		return answer{body: err.Error()}
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := apiClient.Do(req)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{resp.StatusCode, string(text)}
}

// resources are the names of kinds in paths; those that begin with a slash have no namespace.
var resources = map[string]string{
	"Namespace": "/namespaces", "ConfigMap": "configmaps", "DaemonSet": "daemonsets", "PriorityClass": "/priorityclasses", "RuntimeClass": "/runtimeclasses",
	"ServiceAccount": "serviceaccounts", "ClusterRole": "/clusterroles", "ClusterRoleBinding": "/clusterrolebindings",
	"MutatingAdmissionPolicy": "/mutatingadmissionpolicies", "MutatingAdmissionPolicyBinding": "/mutatingadmissionpolicybindings",
	"ValidatingAdmissionPolicy": "/validatingadmissionpolicies", "ValidatingAdmissionPolicyBinding": "/validatingadmissionpolicybindings",
}

var (
	versionLine = regexp.MustCompile(`(?m)^apiVersion: (\S+)$`)
	kindLine    = regexp.MustCompile(`(?m)^kind: (\S+)$`)
	nameLine    = regexp.MustCompile(`(?m)^metadata:\n  name: (\S+)$`)
)

// objectPath returns the path of an object of a manifest.
func objectPath(namespace, manifest string) (string, error) {
	version, kind, name := versionLine.FindStringSubmatch(manifest), kindLine.FindStringSubmatch(manifest), nameLine.FindStringSubmatch(manifest)
	if version == nil || kind == nil || name == nil || resources[kind[1]] == "" {
		return "", fmt.Errorf("manifest without apiVersion, name or known kind: %.200s", manifest)
	}
	group := "/api/" + version[1]
	if strings.Contains(version[1], "/") {
		group = "/apis/" + version[1]
	}
	resource, whole := strings.CutPrefix(resources[kind[1]], "/")
	if !whole {
		group += "/namespaces/" + namespace
	}
	return group + "/" + resource + "/" + name[1], nil
}

// apply creates or changes the objects of manifests, as kubectl apply does.
func apply(t *testing.T, namespace, manifests string) {
	t.Helper()
	for _, m := range split(manifests) {
		path, err := objectPath(namespace, m)
		if err != nil {
			t.Fatal(err)
		}
		if a := request("PATCH", path+"?fieldManager=test&force=true", "application/apply-patch+yaml", []byte(m)); !a.ok() {
			t.Fatalf("apply %s: status %d: %s", path, a.status, a.body)
		}
	}
}

// remove deletes the objects of manifests, the last one first.
func remove(t *testing.T, namespace, manifests string) {
	t.Helper()
	for _, m := range split(manifests) {
		path, err := objectPath(namespace, m)
		if err != nil {
			t.Fatal(err)
		}
		if a := request("DELETE", path, "application/json", []byte(`{"propagationPolicy": "Foreground"}`)); !a.ok() {
			t.Fatalf("delete %s: status %d: %s", path, a.status, a.body)
		}
	}
}

func split(manifests string) (all []string) {
	for m := range strings.SplitSeq(manifests, "\n---\n") {
		if kindLine.MatchString(m) {
			all = append(all, m)
		}
	}
	return all
}
