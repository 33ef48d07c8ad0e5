#!/usr/bin/env bash
# Builds what the cluster of the tests consists of into out/k8s/bin. Programs of others are
# built once for each set of versions: cold in about 10 minutes on two idle cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$PWD/out/k8s
mkdir -p "$out/bin/cni"
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false

containerd=v2.4.2
helm=$(awk '$1 == "helm.sh/helm/v3" {print $2}' tools/helmcheck/go.mod)
kubernetes=$(awk '$1 == "k8s.io/kubernetes" {print $2}' k8s/cluster/hyper/go.mod)
versions="containerd $containerd, kubernetes $kubernetes, helm $helm, $(sha256sum k8s/cluster/build.sh k8s/cluster/{hyper,etcd}/* | sha256sum)"

others() {
  local minor=${kubernetes#v1.}
  local flags="-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${minor%%.*}"
  go -C k8s/cluster/hyper build -trimpath -ldflags "-s -w $flags" -o "$out/bin/hyper" .
  go -C k8s/cluster/etcd build -trimpath -ldflags '-s -w' -o "$out/bin/etcd" .
  local module=github.com/containerd/containerd/v2
  GOBIN=$out/bin go install -trimpath -ldflags "-s -w -X $module/version.Version=$containerd" -tags 'no_btrfs no_devmapper no_zfs no_tracing' \
    "$module"/cmd/{containerd,containerd-shim-runc-v2,ctr}@$containerd
  GOBIN=$out/bin go install -trimpath -ldflags '-s -w' helm.sh/helm/v3/cmd/helm@$helm
  # Debian's runc is built with seccomp, which needs a C library.
  rm -rf "$out/deb" && mkdir -p "$out/deb"
  (cd "$out/deb" && apt-get download -qq runc containernetworking-plugins && for d in *.deb; do dpkg -x "$d" .; done)
  cp "$out/deb/usr/sbin/runc" "$out/bin/"
  cp "$out"/deb/usr/lib/cni/{bridge,host-local,loopback} "$out/bin/cni/"
  echo "$versions" >"$out/versions"
}

start=$SECONDS
if [[ $versions == "$(cat "$out/versions" 2>/dev/null)" ]]; then
  kind=warm
else
  kind=cold
  others
fi
go build -trimpath -o "$out/bin/giveway" ./cmd/giveway
go -C k8s build -trimpath -o "$out/bin/giveway-k8s" ./cmd/giveway-k8s
cp "$1" "$out/bin/libgiveway.so"
echo "built out/k8s in $((SECONDS - start)) s ($kind)"
