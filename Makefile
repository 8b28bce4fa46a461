# `make help` lists what there is to make. Where things are built: target/.

CARGO ?= cargo

.PHONY: help demo test lint bench

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## build linerate, measure everything on this machine, write linerate-demo/report.html
	$(CARGO) build --release --locked --package linerate
	target/release/linerate demo

test: ## install what tests need (as root, with apt), then run all of them
	@tests/setup
	@tests/run

lint: ## formatting, clippy and documentation, without warnings
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

bench: ## compare with iperf3 and bare loops (ONLY=name,… PAIRS=n LONG=1 DETAIL=1); see benches/README.md
	$(CARGO) build --release --locked --package linerate --package linerate-bench
	target/release/linerate-bench
