# Every target builds what it needs. `make help` lists the targets.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

GO_NEEDS := 1.26
FUZZTIME ?= 30s
SEEDS    ?= 10000
DURATION ?= 10m
SEED     ?= 0
N        ?= 150
BIN      ?= bin
HIP      ?=
SOURCE   ?=
KERNEL   ?=
CASE     ?=
PODS     ?= 20

# Scenarios that make demo runs after demo.yaml: the hard cases.
DEMOS := launch-bound decode-loop decode-loop-late sync-loop many-small many-small-pool mixed mixed-pool mixed-amd data-loading gpreempt-z

# Where `make install` puts things. DESTDIR is for packagers; it is part of no path
# inside the installed files.
PREFIX  ?= /usr/local
UNITDIR ?= $(PREFIX)/lib/systemd/system
install uninstall: export PREFIX := $(PREFIX)
install uninstall: export UNITDIR := $(UNITDIR)
install uninstall: export DESTDIR := $(DESTDIR)
install uninstall: export BIN := $(BIN)

# Linters are pinned in a module of their own and built by `go tool` on first use.
TOOL := go tool -modfile=tools/go.mod

# The slowest packages; their tests start first, so that the others run beside them.
SLOW := ./shim ./internal/sim ./internal/daemon ./internal/amd

# Not run under the race detector: packages without goroutines of their own
# (TestNoRaceHasNoGoroutines), and packages whose tests start no goroutines in the test's
# process. The simulator is: its seeds run in parallel.
NO_RACE := giveway/giveway$$|/(sched|policy|attr|api|packaging|cmd/giveway)$$|/internal/(e2e|sim|stats|format|analysis|report|htmlreport|trace|journal|yamlfile|metrics)$$|/internal/amd/lab/

.PHONY: build test fmt demo fuzz soak hostile bench seeds mutants gpu-bundle amd-bundle amd-bundle-test install uninstall clean help check-go shim
.PHONY: kernel-check kernel-test dkms-check hip-check image-files chart-check test-k8s

build: check-go shim ## build bin/giveway (static), bin/giveway-bench (loads CUDA or HIP) and bin/libgiveway.so
	CGO_ENABLED=0 go build -trimpath -buildvcs=false \
	  -ldflags "-s -w -X github.com/giveway/giveway/internal/cli.buildVersion=$$(packaging/version.sh)" -o $(BIN)/ ./cmd/giveway ./cmd/giveway-bench
	@cp $(SHIM) $(BIN)/libgiveway.so

test: check-go shim ## check format, vet, lint, run all tests, then again with the race detector
	@bad=$$($(TOOL) gofumpt -l .); \
	  [[ -z $$bad ]] || { printf 'not formatted (make fmt formats):\n%s\n' "$$bad" >&2; exit 1; }
	go vet ./... # so that go test need not repeat it
	$(TOOL) staticcheck ./...
	go test -vet=off -timeout 15m $(SLOW) ./...
	go -C tools test -count=1 ./... # it reads files of the other module, of which a cached result knows nothing
	go -C k8s vet ./... && go -C k8s test ./...
	pkgs=$$(go list $(SLOW) ./... | grep -Ev '$(NO_RACE)'); CGO_ENABLED=1 go test -vet=off -race -short -timeout 15m $$pkgs
	CGO_ENABLED=1 go test -vet=off -race -short -run '^TestSeeds$$' ./internal/sim
	@echo 'make test: all passed'

# The shim for this machine. It must load with much older C libraries than
# this machine's (a test checks its symbols), and it is never unloaded.
SHIM := shim/lib/libgiveway-$(subst aarch64,arm64,$(subst x86_64,amd64,$(shell uname -m))).so
# Some linkers pack relocations by default, in a format that glibc reads only since 2.36.
# Older linkers do not know the option that prevents it.
comma := ,
UNPACKED = $(if $(findstring nopack-relative-relocs,$(shell $(CC) -Wl,--help 2>&1)),$(comma)-z$(comma)nopack-relative-relocs)

shim: $(SHIM) ## build the shim, which is embedded in bin/giveway

$(SHIM): $(wildcard shim/*.c shim/*.h) shim/giveway.map
	@command -v $(CC) >/dev/null || { echo "the shim needs a C compiler: $(CC) not found (set CC to use another)" >&2; exit 1; }
	@mkdir -p $(dir $@)
	$(CC) -O2 -fPIC -shared -std=gnu11 -fvisibility=hidden -ftls-model=initial-exec -Wall -Wextra -Wshadow -Werror \
	  -Wl,-Bsymbolic,--version-script=shim/giveway.map,-soname,libgiveway.so,-z,defs,-z,nodelete,-z,relro,-z,now$(UNPACKED) -o $@ $(wildcard shim/*.c)

install: ## install what `make` built into PREFIX (/usr/local), with unit, configuration, man pages, completions, headers, documentation
	@packaging/install.sh install

uninstall: ## remove what `make install` installed; a changed configuration file stays
	@packaging/install.sh uninstall

fmt: check-go ## format all Go files
	$(TOOL) gofumpt -w .

demo: build ## simulate nodes with and without giveway; write out/demo.html, out/demo.pftrace and a page for each hard case
	@mkdir -p out
	$(BIN)/giveway sim scenarios/demo.yaml --compare native,giveway --report out/demo.html --trace out/demo.pftrace
	@printf '\nHard cases, a line each:\n'
	@for name in $(DEMOS); do $(BIN)/giveway sim scenarios/$$name.yaml --compare native,giveway --brief --report out/demo-$$name.html || exit; done
	@printf '\nAll figures are in out/demo.html and, of each hard case, in out/demo-NAME.html.\nTo watch the real daemon on the same simulated GPU, live:\n'
	@printf '  export GIVEWAY_SOCKET=$$HOME/.giveway/giveway.sock\n  $(BIN)/giveway daemon --sim scenarios/demo.yaml --socket $$GIVEWAY_SOCKET 2>out/daemon.log &\n  $(BIN)/giveway top\n'

fuzz: check-go shim ## run each fuzz target for FUZZTIME (30s) and print how many inputs it executed
	@FUZZTIME=$(FUZZTIME) tools/fuzz.sh

# Go answers a wrong value of a flag with a page of help, so they are checked before.
number = @case '$($1)' in ''|*[!0-9]*) echo "$1=$($1) is not a number; an example: make $@ $1=100" >&2; exit 2;; esac
length = @case '$($1)' in [0-9]*[smh]) ;; *) echo "$1=$($1) is not a length of time; an example: make $@ $1=90s" >&2; exit 2;; esac

soak: check-go shim ## run a daemon, programs, kills and orders at random for DURATION (10m), from SEED
	$(call length,DURATION)
	$(call number,SEED)
	go test -v -count=1 -timeout 0 -run '^TestSoak$$' ./internal/daemon -args -soak $(DURATION) -seed $(SEED)

hostile: check-go shim ## attack a daemon as an ordinary user for DURATION (10m), as root; print what others see
	$(call length,DURATION)
	go test -v -count=1 -timeout 0 -run '^TestHostileUser$$' ./internal/daemon -args -hostile $(DURATION)

bench: check-go ## benchmark the core and the simulator
	go test -run '^$$' -bench . -benchmem ./sched ./internal/sim

seeds: check-go ## run the simulator with SEEDS (10000) different faults
	$(call number,SEEDS)
	go test -run TestSeeds -timeout 60m ./internal/sim -args -seeds $(SEEDS)

mutants: check-go ## change the core in N (150) ways drawn by SEED (0), one at a time; print those that no test notices
	$(call number,N)
	$(call number,SEED)
	cd tools && go run ./mutants -root .. -n $(N) -seed $(SEED)

gpu-bundle: build ## fill out/gpu-bundle with everything that needs a GPU, for a machine without Go
	@mkdir -p out/gpu-bundle/shim/test
	cp $(BIN)/giveway $(BIN)/giveway-bench packaging/gpu-tests.sh internal/bench/torch_client.py out/gpu-bundle/
	cp shim/*.h out/gpu-bundle/shim/ && cp shim/test/*.cu out/gpu-bundle/shim/test/
	CGO_ENABLED=0 go test -c -ldflags='-s -w' -o out/gpu-bundle/ ./internal/nvidia/nvrm ./internal/nvidia/nvtrace ./internal/nvidia ./internal/e2e

amd-bundle: build ## fill out/amd-bundle with everything that needs an AMD GPU, for a machine without Go
	@mkdir -p out/amd-bundle/testdata
	cp $(BIN)/giveway $(BIN)/giveway-bench packaging/amd-tests.sh internal/bench/torch_client.py out/amd-bundle/
	cp kernel/amdkfd/testdata/*.txt out/amd-bundle/testdata/
	CGO_ENABLED=0 go test -c -o out/amd-bundle/ ./internal/amd/kfd/kfdtest ./internal/amd ./internal/e2e

amd-bundle-test: amd-bundle ## run all of out/amd-bundle that can run on doubles of KFD and HIP, as root
	go test -v -count=1 -timeout 30m -run '^TestAMDBundle$$' ./packaging -args -amd-bundle $(CURDIR)/out/amd-bundle

image-files: build ## fill out/image with what deploy/Dockerfile copies: docker build -f deploy/Dockerfile out/image
	@mkdir -p out/image
	CGO_ENABLED=0 go -C k8s build -trimpath -buildvcs=false -o ../out/image/ ./cmd/giveway-k8s
	cp $(BIN)/giveway $(BIN)/libgiveway.so out/image/

chart-check: check-go ## lint and render the Helm chart with Helm's own code (compiles for minutes the first time)
	go -C tools/helmcheck test -count=1 ./...

test-k8s: check-go shim ## run Giveway in a real Kubernetes of one node in namespaces, as root (compiles Kubernetes the first time)
	@[[ $$(id -u) == 0 ]] || { echo 'test-k8s skipped: a cluster needs root'; exit 0; }; \
	  k8s/cluster/build.sh $(SHIM) && \
	  GIVEWAY_TEST_K8S=must CGO_ENABLED=0 go -C k8s test -v -count=1 -timeout 30m -run '^(TestCluster$(if $(CASE),,|TestFleet))$$/$(CASE)' ./cluster -args -pods $(PODS)

# These take minutes each, with Debian's linux-source-6.12 in out/kernel; not part of test.
kernel-check: ## check the amdkfd patches: apply, checkpatch, W=1, sparse
	kernel/amdkfd/build.sh check

kernel-test: check-go ## boot the stock and the patched amdkfd in QEMU: KUnit, conformance, rights
	kernel/amdkfd/build.sh test

dkms-check: ## check the patches for amdgpu-dkms; SOURCE=/usr/src/amdgpu-VERSION applies them, KERNEL=$(uname -r) compiles amdkfd
	kernel/amdkfd/dkms/check.sh $(SOURCE) $(KERNEL)

hip-check: check-go shim ## check the shim with AMD's real HIP, without a GPU. HIP=/opt/rocm, or HIP=fetch for Debian's in out/hip
	HIP=$(HIP) tools/hip-check.sh

clean: ## remove everything that was built
	rm -rf bin out shim/lib/*.so

help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

check-go:
	@have=$$(go env GOVERSION 2>&1) || true; \
	  printf '%s\n' $(GO_NEEDS) "$$(sed -E 's/^(devel )?go//' <<<"$$have")" | sort -C -V && [[ $$have == *go1.* ]] || \
	  { echo "giveway needs Go $(GO_NEEDS) or newer (https://go.dev/dl); found: $$have" >&2; exit 1; }
