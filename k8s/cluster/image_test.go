package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// isStatic reports whether the test's own program needs no loader.
func isStatic(t *testing.T) bool {
	t.Helper()
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// image is an image of one layer.
type image struct {
	name  string
	files map[string]string // path in the image -> file on the machine
	entry []string
}

// descriptor refers to a blob of an archive.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// archive writes images as an OCI archive, which containerd imports.
func archive(to string, images []image) error {
	blobs := map[string][]byte{}
	add := func(mediaType string, data []byte) descriptor {
		digest := fmt.Sprintf("%x", sha256.Sum256(data))
		blobs["blobs/sha256/"+digest] = data
		return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(data)}
	}
	index := map[string]any{"schemaVersion": 2}
	var manifests []descriptor
	for _, i := range images {
		layer, err := i.layer()
		if err != nil {
			return err
		}
		layerBlob := add("application/vnd.oci.image.layer.v1.tar", layer)
		config := encode(map[string]any{
			"architecture": "amd64", "os": "linux", "config": map[string]any{"Entrypoint": i.entry, "Env": []string{"PATH=/"}},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layerBlob.Digest}},
		})
		manifest := encode(map[string]any{
			"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
			"config": add("application/vnd.oci.image.config.v1+json", config), "layers": []descriptor{layerBlob},
		})
		d := add("application/vnd.oci.image.manifest.v1+json", manifest)
		d.Annotations = map[string]string{"io.containerd.image.name": i.name}
		manifests = append(manifests, d)
	}
	index["manifests"] = manifests
	blobs["index.json"] = encode(index)
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion": "1.0.0"}`)
	data, err := tarball(blobs, 0o644)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// layer returns the files of an image.
func (i image) layer() ([]byte, error) {
	files := map[string][]byte{}
	for place, source := range i.files {
		data, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		files[place] = data
	}
	return tarball(files, 0o755)
}

func tarball(files map[string][]byte, mode int64) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // only values of this package
	}
	return data
}

// importImages makes the images of Giveway and of the test's pods and imports them.
func (n *node) importImages() {
	n.t.Helper()
	images := []image{
		{"localhost/giveway/pod:1", map[string]string{podProgram: "/proc/self/exe"}, []string{"/" + podProgram}},
		{"docker.io/giveway/giveway:0.1.0", map[string]string{
			"giveway": filepath.Join(n.bin, "giveway"), "giveway-k8s": filepath.Join(n.bin, "giveway-k8s"), "libgiveway.so": filepath.Join(n.bin, "libgiveway.so"),
		}, []string{"/giveway"}},
	}
	file := n.path("images.tar")
	if err := archive(file, images); err != nil {
		n.t.Fatalf("make the images: %v", err)
	}
	n.command("ctr", "-n", "k8s.io", "images", "import", file)
}
