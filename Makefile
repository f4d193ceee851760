# gorxe: `make` builds, `make test` tests; `make help` lists the rest.
SHELL    := /bin/bash
GO       ?= go
BIN      := bin/gorxe
VERSION  ?= $(shell git describe --always --dirty 2>/dev/null || echo devel)
PKGS     := ./...
SEED     ?=
SIMTIME  ?= 1m
FUZZTIME ?= 30s
export CGO_ENABLED ?= 0

.PHONY: all build demo test check race sim fuzz bench pgo interop interop-core interop-bench compliance clean help

all: build

build: ## one static binary: bin/gorxe
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN) ./cmd/gorxe

demo: build ## every operation between two namespaces of its own (as root), else in memory
	./$(BIN) demo

test: ## every test; as root the tests on veth pairs must run, too
	$(GO) run ./.ci/testgate $(PKGS)

check: ## gofmt, vet for amd64 and arm64, staticcheck, import directions
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo "run gofmt -w on the files above"; exit 1; }
	$(GO) vet $(PKGS)
	GOARCH=arm64 $(GO) vet $(PKGS)
	$(GO) vet -tags interop ./interop/...
	$(GO) tool staticcheck $(PKGS)
	$(GO) test -count=1 ./internal/archtest

race: ## the tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race $(PKGS)

sim: ## simulation from random seeds for SIMTIME, or of one seed: make sim SEED=42
ifeq ($(SEED),)
	$(GO) test -count=1 -timeout 0 -v -run 'TestSim$$' ./fuzz/sim -args -sim.random -sim.for=$(SIMTIME)
else
	$(GO) test -count=1 -timeout 0 -v -run 'TestSim$$' ./fuzz/sim -args -sim.seed=$(SEED)
endif

fuzz: ## every fuzz target in turn, FUZZTIME each
	@for p in $$($(GO) list ./fuzz/...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
	    echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$p || exit 1; \
	  done; \
	done

bench: build ## message rate, bandwidth, latency and loss against bare AF_XDP and kernel TCP (root)
	./$(BIN) bench --plot bin/bench.svg

pgo: build ## a new profile for the compiler, cmd/gorxe/default.pgo, from the benchmark (root)
	rm -rf bin/pgo && mkdir -p bin/pgo
	./$(BIN) bench --only write_lat_8B,write_rate_64B,write_bw_64KiB_mtu4096 --rounds 1 --duration 4s --cpuprofile bin/pgo/p
	@# where this binary lay is nobody's business
	$(GO) tool pprof -proto bin/pgo/*.prof | gunzip | perl -pe 's|\Q$(abspath $(BIN))\E|"g" x length $$&|ge' | gzip -n9 > cmd/gorxe/default.pgo

interop: ## against the kernel's rxe in virtual machines (root): installs qemu, builds and boots guests, runs the matrix
	$(GO) run ./interop/run $(INTEROP)

interop-core: ## the part of it that CI runs
	$(GO) run ./interop/run -core

interop-bench: ## gorxe against the kernel's rxe, both inside the same two guests (root): bandwidth, latency, message rate, CPU
	$(GO) run ./interop/bench $(INTEROPBENCH)

compliance: ## the architecture's rules, where the code keeps them and which test shows it
	@bash .ci/compliance

clean:
	rm -rf bin

help:
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14
