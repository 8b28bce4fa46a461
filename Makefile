# `make help` lists the targets. Build output goes to target/.

CARGO ?= cargo

.PHONY: help demo test nightly lint bench bench-tune bench-compare bank hostile experiments fuzz valgrind deny docs

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## build linerate, measure everything on this machine, write linerate-demo/report.html
	$(CARGO) build --release --locked --package linerate
	target/release/linerate demo

test: ## install what tests need (as root, with apt), then run all of them (ONLY=name,… of groups and tests)
	@CARGO='$(CARGO)' ONLY='$(ONLY)' tests/run

nightly: ## postponed tests, documentation, valgrind, the bank, experiments and fuzzing, for hours (TIME=seconds of each fuzz target)
	@CARGO='$(CARGO)' TIME='$(TIME)' tests/nightly

lint: ## formatting and clippy, without warnings; `make nightly` also checks the documentation, the fuzz targets and a build without default features
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

bench: ## compare with reference tools and bare loops (ONLY=name,… PAIRS=n LONG=1 DETAIL=1 RECORD=1); see benches/README.md
	@if pkg-config --exists libdpdk 2>/dev/null; then \
		$(CARGO) build --release --locked --package linerate --features dpdk && \
		cp -f target/release/linerate target/release/linerate-dpdk; fi
	$(CARGO) build --release --locked --package linerate --package linerate-bench
	target/release/linerate-bench

bench-tune: ## compare the result of `linerate tune` with an exhaustive sweep (ONLY=lab,… TRIES=n REPEATS=n TIME=t QUICK=1 WITHIN=s RESUME=1); see benches/README.md
	$(CARGO) build --release --locked --package linerate --package linerate-bench
	target/release/linerate-bench-tune

bench-compare: ## verdicts of comparisons in a lab: equal sides, and an injected difference of 5 % (RUNS=n of each kind, ONLY=name,… WITHIN=s RESUME=1); see docs/method/comparison-and-statistics.md
	@RUNS='$(RUNS)' ONLY='$(ONLY)' WITHIN='$(WITHIN)' RESUME='$(RESUME)' $(CARGO) test --release --locked --package linerate --test slow compare_often:: -- --ignored --nocapture

bank: ## inject every bottleneck live and check that it is found (ONLY=name,…; LINERATE_UPDATE=1 records); see docs/CAUSES.md
	@ONLY='$(ONLY)' $(CARGO) test --release --locked --package linerate-explain --test bank
	@ONLY='$(ONLY)' $(CARGO) test --release --locked --package linerate --test slow bank_live:: -- --include-ignored --nocapture

hostile: ## attack a server in a lab, measure what honest clients notice, write the table in docs/SECURITY.md (ONLY=name,…)
	@ONLY='$(ONLY)' $(CARGO) test --release --locked --package linerate --test slow hostile::honest -- --ignored --nocapture

experiments: ## the five experiments, quick; fails when an expected shape does not hold (ONLY=name,… FULL=1)
	$(CARGO) build --release --locked --package linerate
	@ONLY='$(ONLY)' FULL='$(FULL)' experiments/run

fuzz: ## fuzz every codec (TIME=seconds each, ONLY=name,…); see fuzz/README.md
	@TIME='$(TIME)' ONLY='$(ONLY)' CARGO='$(CARGO)' fuzz/run

valgrind: ## test rings, pools and shared memory of the ports under valgrind's memcheck
	@CARGO='$(CARGO)' tests/valgrind

deny: ## check licences, sources, duplicate versions and advisories of dependencies; see deny.toml
	@if command -v cargo-deny > /dev/null; then \
		$(CARGO) deny check --hide-inclusion-graph licenses bans sources && \
		{ $(CARGO) deny fetch db > /dev/null 2>&1 || { echo "skipped: advisories (their database cannot be fetched)"; exit 0; }; \
		$(CARGO) deny check advisories; }; \
	else echo "skipped: cargo-deny is not installed (cargo install cargo-deny --locked)"; fi

docs: ## build the documentation site in target/book from these documents; needs mdbook
	@docs/site
