package agent

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
)

var id = strings.Repeat("a", 64)

func pod(annotations map[string]string, env ...string) Pod {
	return Pod{Name: "serve-0", Namespace: "ml", UID: "2f1b7a04-5c1e-4a53-9d3b-8a7a6f0c1d2e", Container: "main", ID: id, Annotations: annotations, Env: env}
}

// TestRead: annotations give attributes; a mistake is left out and reported, and everything
// else stays.
func TestRead(t *testing.T) {
	claim := func(fields string) string {
		return claimEnv + `{"apiVersion":"giveway.dev/v1","kind":"GPUPriority",` + fields + "}"
	}
	for name, c := range map[string]struct {
		annotations string // key=value ...
		env         []string
		trust       bool
		want        string
		shim, pool  bool
		mistake     string // part of one
	}{
		"nothing":                        {},
		"others' annotations":            {annotations: "example.com/class=fast kubectl.kubernetes.io/x=y"},
		"all":                            {annotations: "class=online weight=3 slo=20ms shim=true", want: "class=online weight=3 slo=20ms", shim: true},
		"one container":                  {annotations: "class=batch class.container.main=idle class.container.other=online", want: "class=idle"},
		"only another container":         {annotations: "class.container.other=online"},
		"unknown class":                  {annotations: "class=fast weight=2", want: "weight=2", mistake: "class fast is not one of"},
		"weight out of range":            {annotations: "class=batch weight=-1", want: "class=batch", mistake: "weight"},
		"slo without a unit":             {annotations: "class=online slo=20", want: "class=online", mistake: "slo"},
		"unknown key":                    {annotations: "clas=batch", mistake: "is not known; there are: class, pool, slo, weight, shim"},
		"shim neither true nor false":    {annotations: "shim=maybe", mistake: "not true or false"},
		"pool":                           {annotations: "class=batch pool=true", want: "class=batch pool=on", pool: true},
		"pool of another class":          {annotations: "class=online pool=true", want: "class=online", mistake: "for class batch only"},
		"an attribute that is not asked": {annotations: "paused=true", mistake: "is not known"},
		"claim":                          {env: []string{"A=b", claim(`"class":"batch","weight":"7"`)}, want: "class=batch weight=7"},
		"annotation over claim":          {annotations: "class=idle", env: []string{claim(`"class":"batch"`)}, want: "class=idle"},
		"online by claim":                {env: []string{claim(`"class":"online","weight":"2"`)}, want: "weight=2", mistake: "--trust-claims"},
		"online by claim, trusted":       {env: []string{claim(`"class":"online"`)}, trust: true, want: "class=online"},
		"claim that is none":             {env: []string{claimEnv + "{"}, mistake: "not a GPUPriority"},
		"claim of another kind":          {env: []string{claimEnv + `{"apiVersion":"giveway.dev/v1","kind":"X","class":"batch"}`}, mistake: "not a GPUPriority"},
	} {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{}
			for pair := range strings.FieldsSeq(c.annotations) {
				key, value, _ := strings.Cut(pair, "=")
				if !strings.Contains(key, "/") {
					key = prefix + key
				}
				annotations[key] = value
			}
			r := Read(pod(annotations, c.env...), c.trust)
			if r.Container.Values != attr.Must(c.want) || r.Shim != c.shim || r.Pool != c.pool {
				t.Errorf("got %v, shim %v, pool %v; want %s, %v, %v", r.Container.Values, r.Shim, r.Pool, c.want, c.shim, c.pool)
			}
			if said := strings.Join(r.Mistakes, "\n"); (c.mistake == "") != (said == "") || !strings.Contains(said, c.mistake) {
				t.Errorf("got mistakes %q, want %q", said, c.mistake)
			}
			if r.Container.ContainerNames != (api.ContainerNames{Name: "main", Pod: "serve-0", Namespace: "ml"}) || r.Container.ID != id {
				t.Errorf("got %+v", r.Container)
			}
		})
	}
}

// TestPolicyKnowsTheKeys: the admission policy accepts the keys that are read here, and no
// others.
func TestPolicyKnowsTheKeys(t *testing.T) {
	text, err := os.ReadFile("../../deploy/helm/giveway/templates/admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`\^giveway\[\.\]dev/\(([a-z|]+)\)`).FindStringSubmatch(string(text))
	if found == nil {
		t.Fatal("the policy has no list of keys")
	}
	got, want := strings.Split(found[1], "|"), append(slices.Collect(maps.Keys(keys)), shimKey)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the policy has %v, want %v", got, want)
	}
}

// TestReadHostilePods: whatever a pod has for annotations and names, the result is one that
// the daemon takes, and reports stay short.
func TestReadHostilePods(t *testing.T) {
	large := strings.Repeat("x\x1b[2J\n", 50_000) // more than Kubernetes allows
	many := map[string]string{}
	for i := range 5000 {
		many[prefix+"x"+strings.Repeat("y", i%50)+string(rune('a'+i%26))] = large[:100]
	}
	for name, p := range map[string]Pod{
		"large value": pod(map[string]string{prefix + "class": large}),
		"large key":   pod(map[string]string{prefix + large: "batch"}),
		"many":        pod(many),
		"large claim": pod(nil, claimEnv+large),
		"names":       {Name: "<script>", Namespace: "\x1b[31m", UID: large, Container: "../..", ID: id},
		"no id":       {Name: "a", ID: "../../etc"},
	} {
		r := Read(p, false)
		if err := r.Container.Check(); err != nil && p.ID == id && p.UID != large {
			t.Errorf("%s: the daemon would refuse it: %v", name, err)
		}
		if said := strings.Join(r.Mistakes, ""); len(said) > 4096 || strings.ContainsAny(said, "\x1b\n") || said == "" {
			t.Errorf("%s: got a report of %d bytes: %.200q", name, len(said), said)
		}
	}
}

// TestAdjust: what a container gets depends on what it asks for and on what the node has.
func TestAdjust(t *testing.T) {
	node := Injection{Library: "/usr/lib/giveway", Socket: "/run/giveway", Pool: "/run/pool"}
	for name, c := range map[string]struct {
		node       Injection
		shim, pool bool
		env        []string
		mounts     string
		want       map[string]string
		mistake    string
	}{
		"nothing asked for": {node: node},
		"shim": {
			node: node, shim: true, mounts: "/usr/lib/giveway:/opt/giveway /run/giveway:/run/giveway",
			want: map[string]string{"LD_PRELOAD": "/opt/giveway/libgiveway.so", "GIVEWAY_SOCKET": "/run/giveway/giveway.sock"},
		},
		"shim beside another library": {
			node: Injection{Library: "/l"}, shim: true, env: []string{"LD_PRELOAD=/a.so", "LD_PRELOAD=/b.so /c.so"}, mounts: "/l:/opt/giveway",
			want: map[string]string{"LD_PRELOAD": "/b.so /c.so:/opt/giveway/libgiveway.so"},
		},
		"shim that is there": {
			node: Injection{Library: "/l"}, shim: true, env: []string{"LD_PRELOAD=/opt/giveway/libgiveway.so"}, mounts: "/l:/opt/giveway",
			want: map[string]string{"LD_PRELOAD": "/opt/giveway/libgiveway.so"},
		},
		"shim, none on the node": {shim: true, mistake: "no shim"},
		"pool":                   {node: node, pool: true, mounts: "/run/pool:/run/giveway-pool", want: map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/run/giveway-pool"}},
		"pool, none on the node": {pool: true, mistake: "no pool"},
	} {
		r := Request{Shim: c.shim, Pool: c.pool}
		got := c.node.Adjust(&r, c.env)
		var mounts []string
		for _, m := range got.Mounts {
			mounts = append(mounts, m.Source+":"+m.Destination)
		}
		if strings.Join(mounts, " ") != c.mounts || !maps.Equal(got.Env, c.want) {
			t.Errorf("%s: got %v %v, want %s %v", name, mounts, got.Env, c.mounts, c.want)
		}
		if said := strings.Join(r.Mistakes, ""); (c.mistake == "") != (said == "") || !strings.Contains(said, c.mistake) {
			t.Errorf("%s: got mistakes %q, want %q", name, said, c.mistake)
		}
	}
}
