# Tandem. `make help` lists the targets; `make up` and `make test` are the two
# that matter.

GO      ?= go
CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tandem
BIN     := bin/tandem
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

LINT_VERSION := v2.15.0
LINT         := $(CACHE)/bin/golangci-lint-$(LINT_VERSION)

# The model's golden data and the process tests need no race detector; these
# packages hold all of the concurrency.
RACE_PKGS := ./internal/kv/... ./internal/sched/... ./internal/engine/... ./internal/sample/... ./internal/sim/... \
             ./internal/transfer/... ./internal/connector/... ./internal/server/... ./internal/openai/... \
             ./internal/backend/... ./internal/router/... ./internal/telemetry/... ./internal/fault/... ./internal/bystander/...

# A busy machine may take longer than the ten minutes that go test would wait.
GOTEST := $(GO) test -timeout 40m

FUZZTIME ?= 10s

export CGO_ENABLED ?= 0

.PHONY: help build fetch up test sim sim-nightly model race invariants lint bench fuzz mutants mutants-nightly stutter-nightly golden gen gen-check e2e faults conform tidy-check ci clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/tandem
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/tandem

model: build ## fetch the default model into the cache folder, once
	@$(BIN) model fetch

fetch: model $(LINT) ## fetch all that the other targets need of the network
	$(GO) mod download
	$(GO) -C internal/compute/gen mod download
	$(GO) -C test/conform mod download
	test/conform/run install
	-$(GO) mod tidy -diff >/dev/null # reads more than a build does

up: model ## start a prefill engine, a decode engine and a router on the default model
	$(BIN) up

test: model ## run every test of the main module
	$(GOTEST) ./...

race: model ## the concurrent packages under the race detector (needs gcc)
	CGO_ENABLED=1 $(GOTEST) -race -short $(RACE_PKGS)

invariants: model ## the same packages with expensive checks after every step
	$(GOTEST) -tags invariants $(RACE_PKGS) ./test/simulation

# make sim SEED=123 TRACE=1 runs one seed and prints every event.
SEEDS ?= 20000
FIRST ?= 1
SIM   := $(GO) test -count=1 -timeout 0 -v ./test/simulation -run 'TestSeeds$$'

sim: ## simulated P/D systems under SEEDS (20000) seeds; SEED=N TRACE=1 replays one
ifdef SEED
	$(SIM) -seed $(SEED) $(if $(TRACE),-events)
else
	$(SIM) -seeds $(SEEDS) -first $(FIRST) $(if $(TRACE),-events)
endif

sim-nightly: ## the same with fresh seeds, until a seed fails or somebody stops it
	$(SIM) -first $$(date +%s)00000 -forever

golden: model ## the golden rules on every kernel path, with distances printed
	$(GOTEST) -count=1 -v ./test/golden -all

e2e: build ## only the tests over real processes
	$(GOTEST) -count=1 -v ./test/e2e

faults: model ## clusters under every kind of trouble, and what recovery costs: an error when a line is not met
	$(GO) run ./test/faults $(FAULTS)
	$(GO) run ./test/bench -only recovery

conform: model ## official OpenAI clients and a foreign router against our engines
	test/conform/run

$(LINT):
	@mkdir -p $(CACHE)/bin
	GOBIN=$(CACHE)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	@mv $(CACHE)/bin/golangci-lint $(LINT)

lint: $(LINT) ## golangci-lint over the main module
	$(GO) vet ./...
	$(LINT) run ./...

bench: model ## benchmarks that print ratios of one run; LLAMA_BENCH=PATH adds llama.cpp
	test/bench/run

fuzz: ## every fuzz target for FUZZTIME (10s)
	test/fuzz $(FUZZTIME)

mutants: ## break the recovery code in listed ways: the named tests must notice
	$(GO) run ./test/mutants

mutants-nightly: ## break it in every small way; prints what no test noticed (an hour)
	$(GO) run ./test/mutants -generate

stutter-nightly: model ## the concurrent packages while the code waits at random statements, under ever new seeds
	$(GO) run ./test/stutter -seed $$(date +%s)00 -seeds 0 $(RACE_PKGS)

# The pages are made by tests, which compare them too: make test fails on an old one.
PAGES := $(GO) test -count=1 ./internal/telemetry ./cmd/tandem -run 'PageIsTheCode$$'

gen: ## regenerate the assembly kernels and the pages under docs that come from the code
	cd internal/compute/gen && $(GO) run .
	$(PAGES) -update

gen-check: ## fail when committed assembly or pages are not what the generators make
	cd internal/compute/gen && $(GO) run . -check
	$(PAGES)

tidy-check: ## fail when go.mod is not tidy
	$(GO) mod tidy -diff

ci: ## what CI runs
	.ci/run

clean: ## remove what the build made
	rm -rf bin
