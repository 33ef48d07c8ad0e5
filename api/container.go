package api

import (
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/giveway/giveway/attr"
)

// Container is a container as an agent registered it: names to show and to match in rules,
// and the attributes that its processes get as from a rule. In JSON the attributes are keys
// beside the fields.
type Container struct {
	ContainerNames
	ID     string // 64 hex digits, as in the path of the container's cgroup
	PodUID string // identifies the pod; empty: the container is its own
	attr.Values
}

// ContainerNames are the names of a container and of what it belongs to. All may be empty.
type ContainerNames struct {
	Name      string `json:"container_name,omitempty"`
	Pod       string `json:"pod_name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

type containerJSON struct {
	ID     string `json:"id"`
	PodUID string `json:"pod_uid,omitempty"`
	ContainerNames
}

// MarshalJSON implements json.Marshaler.
func (c Container) MarshalJSON() ([]byte, error) {
	return joinJSON(containerJSON{c.ID, c.PodUID, c.ContainerNames}, c.Values)
}

// UnmarshalJSON implements json.Unmarshaler. It refuses keys that it does not know.
func (c *Container) UnmarshalJSON(data []byte) error {
	var other containerJSON
	if err := readJSON(data, &c.Values, &other, attr.ByRule, "id", "pod_uid", "container_name", "pod_name", "namespace"); err != nil {
		return err
	}
	c.ID, c.PodUID, c.ContainerNames = other.ID, other.PodUID, other.ContainerNames
	return nil
}

// The forms of identifiers and names. Names are those of Kubernetes: DNS subdomains.
var (
	containerID   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	podUID        = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)
	containerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
)

// Check returns an error if an identifier or a name has another form, or an attribute cannot
// be given by a rule or is out of range.
func (c *Container) Check() error {
	if !containerID.MatchString(c.ID) {
		return fmt.Errorf("id %.80q is not the id of a container, which has 64 hex digits", c.ID)
	}
	if c.PodUID != "" && !podUID.MatchString(c.PodUID) {
		return fmt.Errorf("pod_uid %.80q is not the UID of a pod", c.PodUID)
	}
	for key, name := range map[string]string{"container_name": c.Name, "pod_name": c.Pod, "namespace": c.Namespace} {
		if name != "" && !containerName.MatchString(name) {
			return fmt.Errorf("%s %.80q is not a name: lower-case letters, digits, '-' and '.', 253 at most", key, name)
		}
	}
	return c.Values.Check(attr.ByRule)
}

// Owner identifies what shares the rights of the container's processes: its pod, or the
// container itself.
func (c *Container) Owner() string {
	if c.PodUID != "" {
		return c.PodUID
	}
	return c.ID
}

var _ json.Marshaler = Container{}
