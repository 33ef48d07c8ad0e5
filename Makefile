# What people type. Every target sets up what it needs; `make help` lists them.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

GO_NEEDS := 1.26
FUZZTIME ?= 30s
SEEDS    ?= 10000

# Linters are pinned in a module of their own and built by `go tool` on first use.
TOOL := go tool -modfile=tools/go.mod

# The pure packages have no goroutines (shape_test.go sees to it), so the race
# detector has nothing to find in them.
NO_RACE := giveway/giveway$$|/sched$$|/policy$$|/internal/stats$$

.PHONY: build test fmt demo fuzz bench seeds gpu-bundle clean help go-is-there shim
.PHONY: kernel-check kernel-test

build: go-is-there shim ## bin/giveway, static; bin/giveway-bench, which loads libcuda; bin/libgiveway.so, for queues
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/ ./cmd/giveway ./cmd/giveway-bench
	@cp $(SHIM) bin/libgiveway.so

test: go-is-there shim ## format, vet, lint, tests, tests under the race detector
	@bad=$$($(TOOL) gofumpt -l .); \
	  [[ -z $$bad ]] || { printf 'not formatted (make fmt puts it right):\n%s\n' "$$bad" >&2; exit 1; }
	go vet ./...
	$(TOOL) staticcheck ./...
	go test -timeout 15m ./...
	pkgs=$$(go list ./... | grep -Ev '$(NO_RACE)'); CGO_ENABLED=1 go test -race -short -timeout 15m $$pkgs
	@echo 'make test: all passed'

# The preload library, for this machine. It must load beside a C library much older
# than ours (a test looks at its symbols), and it can never be unloaded.
SHIM := shim/lib/libgiveway-$(subst aarch64,arm64,$(subst x86_64,amd64,$(shell uname -m))).so
# A linker may pack relocations by itself, as glibc reads them since 2.36 only; an older
# one does not know the word for not doing so.
comma := ,
UNPACKED = $(if $(findstring nopack-relative-relocs,$(shell $(CC) -Wl,--help 2>&1)),$(comma)-z$(comma)nopack-relative-relocs)

shim: $(SHIM) ## shim/lib: the preload library, which build puts into bin/giveway

$(SHIM): $(wildcard shim/*.c shim/*.h) shim/giveway.map
	@command -v $(CC) >/dev/null || { echo "the preload library needs a C compiler: no $(CC) here (CC=... names another)" >&2; exit 1; }
	$(CC) -O2 -fPIC -shared -std=gnu11 -fvisibility=hidden -ftls-model=initial-exec -Wall -Wextra -Wshadow -Werror \
	  -Wl,-Bsymbolic,--version-script=shim/giveway.map,-soname,libgiveway.so,-z,defs,-z,nodelete,-z,relro,-z,now$(UNPACKED) -o $@ $(wildcard shim/*.c)

fmt: go-is-there ## put the formatting right
	$(TOOL) gofumpt -w .

demo: build ## one node in simulation, with and without giveway: out/demo.html, out/demo.json
	@mkdir -p out
	bin/giveway sim scenarios/demo.yaml --compare native,giveway --report out/demo.html --trace out/demo.json

fuzz: go-is-there ## each fuzz test of the core for FUZZTIME (30s)
	@names=$$(go test -list '^Fuzz' ./sched | grep '^Fuzz') || { echo 'no fuzz tests in ./sched' >&2; exit 1; }; \
	  for name in $$names; do go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) ./sched; done

bench: go-is-there ## benchmarks of the core and the simulator
	go test -run '^$$' -bench . -benchmem ./sched ./internal/sim

seeds: go-is-there ## SEEDS (10000) runs of the simulator with faults
	go test -run TestSeeds -timeout 60m ./internal/sim -args -seeds $(SEEDS)

gpu-bundle: build ## out/gpu-bundle: all that needs a GPU, for a machine with a driver and no Go
	@mkdir -p out/gpu-bundle
	cp bin/giveway bin/giveway-bench packaging/gpu-tests.sh internal/bench/torch_client.py out/gpu-bundle/
	mkdir -p out/gpu-bundle/shim/test && cp shim/*.h out/gpu-bundle/shim/ && cp shim/test/*.cu out/gpu-bundle/shim/test/
	CGO_ENABLED=0 go test -c -o out/gpu-bundle/ ./internal/nvidia/nvrm ./internal/nvidia/nvtrace ./internal/nvidia ./internal/e2e

# Minutes each, with Debian's linux-source-6.12 in out/kernel; not part of test.
kernel-check: ## our patches to amdkfd: apply, checkpatch, W=1, sparse
	kernel/amdkfd/build.sh check

kernel-test: go-is-there ## stock and patched amdkfd in QEMU: KUnit, conformance, rights
	kernel/amdkfd/build.sh test

clean: ## remove what was built
	rm -rf bin out shim/lib/*.so

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

go-is-there:
	@have=$$(go env GOVERSION 2>&1) || true; \
	  printf '%s\n' $(GO_NEEDS) "$$(sed -E 's/^(devel )?go//' <<<"$$have")" | sort -C -V && [[ $$have == *go1.* ]] || \
	  { echo "giveway needs Go $(GO_NEEDS) or newer (https://go.dev/dl); here: $$have" >&2; exit 1; }
