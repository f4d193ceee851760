# `make` builds gorxe, `make test` tests it, `make help` lists all targets.
SHELL    := /bin/bash
GO       ?= go
BIN      := bin/gorxe
VERSION  ?= $(shell git describe --always --dirty 2>/dev/null || echo devel)
PKGS     := ./...
SEED     ?=
SEEDS    ?=
SIMTIME  ?= 1m
FUZZTIME ?= 30s
TIME     ?= 2h
BUILDFLAGS := -trimpath
N        ?=
export CGO_ENABLED ?= 0

.PHONY: all build demo test check race sim bounds fuzz hostile soak bench pgo interop interop-core interop-bench page compliance clean help

all: build

build: ## build bin/gorxe, one static binary
	$(GO) build $(BUILDFLAGS) -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN) ./cmd/gorxe

demo: build ## run every operation on a veth pair (as root) or on loopback addresses
	./$(BIN) demo

# With the profile of cmd/gorxe, Go compiles every package a second time.
test check interop interop-core: export GOFLAGS := $(GOFLAGS) -pgo=off

test: ## run all tests (as root, none on veth pairs may be skipped)
	cd examples/prometheus && $(GO) vet ./... && $(GO) test ./...
	cd examples/grpc && $(GO) vet ./... && $(GO) test ./...
	$(GO) run ./.ci/testgate $(PKGS) # last: its closing line is the result

# Packages with assembly or system call numbers of arm64.
ARM64 := ./frame ./internal/clock ./internal/confine ./internal/fence ./internal/prefetch \
	./internal/seccomp

# Packages that other systems can use with links in memory. statusbyte needs Unix.
PORTABLE := ./bth/... ./frame ./driver ./mr ./qp/... ./loopback ./roce/... ./examples/kv \
	./examples/verbs ./transport/flow ./transport/indirect ./transport/rftp \
	./transport/slidingwindow

check: ## run gofmt, vet, staticcheck, type checks for other systems, rules of the source tree
	@test -z "$$(gofmt -l . | tee -a /dev/stderr)" || { echo "run gofmt -w on the files above"; exit 1; }
	$(GO) vet $(PKGS)
	GOARCH=arm64 $(GO) vet $(ARM64)
	$(GO) run ./.ci/typecheck linux/arm64 $(PKGS)
	$(GO) run ./.ci/typecheck darwin/arm64 $(PORTABLE) ./transport/statusbyte
	$(GO) run ./.ci/typecheck freebsd/amd64 $(PORTABLE) ./transport/statusbyte
	$(GO) run ./.ci/typecheck windows/amd64 $(PORTABLE)
	$(GO) vet -tags interop ./interop/...
	$(GO) tool staticcheck $(PKGS)
	$(GO) test -count=1 ./internal/archtest

race: ## run the tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race $(PKGS)

sim: ## simulate random seeds for SIMTIME (1m), or: make sim SEEDS=200000, make sim SEED=42
ifneq ($(SEED),)
	$(GO) test -count=1 -timeout 0 -v -run 'TestSim$$' ./fuzz/sim -args -sim.seed=$(SEED)
else ifneq ($(SEEDS),)
	$(GO) test -count=1 -timeout 0 -v -run 'TestSim$$' ./fuzz/sim -args -sim.random -sim.n=$(SEEDS)
else
	$(GO) test -count=1 -timeout 0 -v -run 'TestSim$$' ./fuzz/sim -args -sim.random -sim.for=$(SIMTIME)
endif

bounds: ## compare flow.Bound with traffic classes in virtual time: SEEDS (5000) from SEED (0) on
	$(GO) test -count=1 -timeout 0 -v -run '^TestClassesKeepBounds$$' ./transport/flow -args -flow.seeds=$(or $(SEEDS),5000) -flow.from=$(or $(SEED),0)

fuzz: ## run each fuzz target for FUZZTIME (30s)
	@for p in $$(grep -rl --include=*_test.go "^func Fuzz" . | xargs -n1 dirname | sort -u); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
	    echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$p || exit 1; \
	  done; \
	done

hostile: ## run hostile programs against the emulated device: N (100000) executions, SEED (1)
	$(GO) test -count=1 -timeout 0 -v -run '^TestHostile$$' ./internal/uverbs ./internal/ucma -args -hostile.n=$(or $(N),100000) -hostile.seed=$(or $(SEED),1)

soak: ## run honest and hostile peers for TIME (2h) on a quarter of a core, or again: make soak SEED=42
	$(GO) test -count=1 -timeout 0 -v ./fuzz/soak -args -soak.for=$(TIME) -soak.cpu=25 $(if $(SEED),-soak.seed=$(SEED))

bench: build ## compare gorxe with bare AF_XDP frames and kernel TCP (root)
	./$(BIN) bench --plot bin/bench.svg

pgo: build ## record a new profile for the compiler, cmd/gorxe/default.pgo (root)
	rm -rf bin/pgo && mkdir -p bin/pgo
	./$(BIN) bench --only write_lat_8B,write_rate_64B,write_bw_64KiB_mtu4096 --rounds 1 --duration 4s --cpuprofile bin/pgo/p
	@# Replace the path of this machine in the profile.
	$(GO) tool pprof -proto bin/pgo/*.prof | gunzip | perl -pe 's|\Q$(abspath $(BIN))\E|"g" x length $$&|ge' | gzip -n9 > cmd/gorxe/default.pgo

interop: ## test against the kernel's rxe in virtual machines (root, Debian); installs qemu
	$(GO) run ./interop/run $(INTEROP)

interop-core: ## run the part of interop that CI runs (root, Debian)
	$(GO) run ./interop/run -core

interop-bench: ## compare gorxe with the kernel's rxe inside the same two guests (root, Debian)
	$(GO) run ./interop/bench $(INTEROPBENCH)

page: ## test the status page of gorxe up in Chromium (root, Debian); installs chromium
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)
	$(GO) test -count=1 -v -run 'TestPageInBrowser$$' ./internal/status

compliance: ## list the rules of the InfiniBand architecture with the code and tests that cite them
	@bash .ci/compliance

clean: ## remove bin
	rm -rf bin

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14
