// Package helmcheck checks the Helm chart with Helm's own code: it lints the chart, renders
// it with several values, and compares the plain manifests with what it renders.
package helmcheck

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"
)

const (
	chartFolder = "../../deploy/helm/giveway"
	manifests   = "../../deploy/kubernetes/giveway.yaml"
	withWatch   = "../../deploy/kubernetes/giveway-watch.yaml"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the plain manifests")

// object is one object of Kubernetes.
type object map[string]any

func (o object) get(keys ...string) any {
	var v any = map[string]any(o)
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func (o object) name() string {
	kind, _ := o["kind"].(string)
	name, _ := o.get("metadata", "name").(string)
	return kind + "/" + name
}

// render returns the text of all objects, and the objects by kind and name.
func render(t *testing.T, values map[string]any) (string, map[string]object) {
	t.Helper()
	c, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "giveway", Namespace: "giveway"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	objects := map[string]object{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) != ".yaml" {
			continue
		}
		for _, text := range strings.Split("\n"+files[name], "\n---") {
			var o object
			if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, text)
			}
			if o == nil {
				continue
			}
			if objects[o.name()] != nil {
				t.Errorf("%s is there twice", o.name())
			}
			objects[o.name()] = o
			out.WriteString("---\n" + strings.TrimSpace(text) + "\n")
		}
	}
	return out.String(), objects
}

func TestLint(t *testing.T) {
	l := lint.All(chartFolder, nil, "giveway", true)
	for _, m := range l.Messages {
		if m.Severity > support.InfoSev {
			t.Errorf("%v", m)
		}
	}
}

// TestRights: the daemon has the capabilities that docs/SECURITY.md explains and no others;
// the agent has none; neither has a token of the API server.
func TestRights(t *testing.T) {
	_, all := render(t, nil)
	daemon, agent := all["DaemonSet/giveway-daemon"], all["DaemonSet/giveway-agent"]
	if daemon == nil || agent == nil {
		t.Fatalf("got %v", slices.Sorted(maps.Keys(all)))
	}
	doc, err := os.ReadFile("../../docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	c := daemon.get("spec", "template", "spec", "containers").([]any)[0].(map[string]any)
	added := object(c).get("securityContext", "capabilities", "add").([]any)
	for _, name := range added {
		if !strings.Contains(string(doc), "`CAP_"+name.(string)+"`") {
			t.Errorf("capability %v is not explained in docs/SECURITY.md", name)
		}
	}
	if n := strings.Count(string(doc), "| `CAP_"); n != len(added) {
		t.Errorf("the daemon has %d capabilities, docs/SECURITY.md explains %d", len(added), n)
	}
	a := agent.get("spec", "template", "spec", "containers").([]any)[0].(map[string]any)
	if object(a).get("securityContext", "capabilities", "add") != nil || agent.get("spec", "template", "spec", "hostPID") != nil {
		t.Error("the agent has rights that it does not need")
	}
	for _, set := range []object{daemon, agent} {
		if set.get("spec", "template", "spec", "automountServiceAccountToken") != false {
			t.Errorf("%s has a token", set.name())
		}
	}
}

// TestValues: every value has the effect that values.yaml describes.
func TestValues(t *testing.T) {
	without := func(text string) func(string) bool { return func(s string) bool { return !strings.Contains(s, text) } }
	with := func(text string) func(string) bool { return func(s string) bool { return strings.Contains(s, text) } }
	for name, c := range map[string]struct {
		values string
		check  func(string) bool
	}{
		"image":                   {"image: example.com/gw:9", with("image: example.com/gw:9")},
		"imagePullPolicy":         {"imagePullPolicy: Never", with("imagePullPolicy: Never")},
		"nodeSelector":            {"nodeSelector: {gpu: present}", with("gpu: present")},
		"tolerations":             {"tolerations: []", without("operator: Exists")},
		"daemon.config":           {"daemon: {config: {policy: rr}}", with("policy: rr")},
		"daemon.runtimeClassName": {"daemon: {runtimeClassName: \"\"}", without("runtimeClassName")},
		"daemon.privileged":       {"daemon: {privileged: true}", with("privileged: true")},
		"daemon.args":             {"daemon: {args: [daemon, --sim, /x.yaml]}", with("- --sim")},
		"daemon.resources":        {"daemon: {resources: {limits: {memory: 1Gi}}}", with("memory: 1Gi")},
		"agent.nriSocket":         {"agent: {nriSocket: /var/run/x/n.sock}", with("path: /var/run/x,")},
		"agent.shim":              {"agent: {shim: false}", without("--library")},
		"agent.pool":              {"agent: {pool: /run/p}", with("--pool=/run/p")},
		"agent.trustClaims":       {"agent: {trustClaims: true}", with("--trust-claims")},
		"agent.watch":             {"agent: {watch: true}", with("- --watch\n")},
		"classes":                 {"classes: {gpu-fast: online}", with("gpu-fast: online")},
		"priorityClasses.create":  {"priorityClasses: {create: false}", without("kind: PriorityClass")},
		"admission.map":           {"admission: {map: false}", without("MutatingAdmissionPolicy")},
		"admission.guard":         {"admission: {guard: false}", without("ValidatingAdmissionPolicy")},
		"metrics.port":            {"metrics: {port: 9100}", with("tcp: \"0.0.0.0:9100\"")},
		"metrics.tokenSecret":     {"metrics: {port: 9100, tokenSecret: mine}", with("secretName: mine")},
		"metrics.podMonitor":      {"metrics: {port: 9100, podMonitor: true}", with("kind: PodMonitor")},
		"metrics.dashboards":      {"metrics: {dashboards: true}", with("grafana_dashboard")},
		"metrics.rules":           {"metrics: {rules: true}", with("kind: PrometheusRule")},
	} {
		var values map[string]any
		if err := yaml.UnmarshalStrict([]byte(c.values), &values); err != nil {
			t.Fatal(err)
		}
		if plain, _ := render(t, nil); c.check(plain) {
			t.Errorf("%s: the default is no different", name)
		}
		if text, _ := render(t, values); !c.check(text) {
			t.Errorf("%s: no effect", name)
		}
	}
}

// TestWatch: only an agent that watches has a token, for watching pods and nothing else.
func TestWatch(t *testing.T) {
	_, plain := render(t, nil)
	_, all := render(t, map[string]any{"agent": map[string]any{"watch": true}})
	for name, o := range plain {
		if kind, _ := o["kind"].(string); strings.Contains(kind, "Role") || kind == "ServiceAccount" {
			t.Errorf("%s is there without a watch", name)
		}
	}
	want := []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"pods"}, "verbs": []any{"watch"}}}
	if got := all["ClusterRole/giveway-agent"]["rules"]; !reflect.DeepEqual(got, want) {
		t.Errorf("the agent may %v, want %v", got, want)
	}
	for name, token := range map[string]bool{"DaemonSet/giveway-daemon": false, "DaemonSet/giveway-agent": true} {
		if got := all[name].get("spec", "template", "spec", "automountServiceAccountToken"); got != token {
			t.Errorf("%s: token %v, want %v", name, got, token)
		}
	}
	if len(all) != len(plain)+3 {
		t.Errorf("a watch adds %d objects, want 3", len(all)-len(plain))
	}
}

// TestManifests: the plain manifests are what the chart renders. Those with a watch are the
// objects that it adds or changes.
func TestManifests(t *testing.T) {
	const from = "# Rendered from deploy/helm/giveway (go -C tools/helmcheck test . -rewrite).\n"
	text, _ := render(t, nil)
	compare(t, manifests, "# Giveway without Helm: kubectl create namespace giveway && kubectl -n giveway apply -f giveway.yaml\n"+from+text)
	watching, _ := render(t, map[string]any{"agent": map[string]any{"watch": true}})
	var more strings.Builder
	for _, o := range strings.SplitAfter(watching, "\n---\n") {
		if !strings.Contains(text, strings.TrimSuffix(o, "---\n")) {
			more.WriteString(o)
		}
	}
	compare(t, withWatch, "# In addition to giveway.yaml, so that changed annotations of running pods take effect: kubectl -n giveway apply -f giveway-watch.yaml\n"+
		from+"---\n"+strings.TrimSuffix(more.String(), "---\n"))
}

func compare(t *testing.T, file, want string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, []byte(want)) {
		t.Errorf("%s is not what the chart renders (%v): run go -C tools/helmcheck test . -rewrite", file, err)
	}
}
