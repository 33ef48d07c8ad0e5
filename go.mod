module github.com/giveway/giveway

go 1.26.3

require (
	github.com/ebitengine/purego v0.11.2
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	go.yaml.in/yaml/v3 v3.0.5
)

require (
	github.com/cilium/ebpf v0.22.0
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	golang.org/x/sys v0.43.0
	gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237
)
