# Shortcuts; each calls one script or command. Nothing needs `just`.

# Install what building and testing need.
setup:
    tests/setup

fmt:
    cargo fmt --all

lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Everything that a change must pass.
test:
    tests/run

# The tests on PostgreSQL.
pg:
    tests/run 'test(/postgres$/)'

# The API against its own description.
contract:
    tests/contract/run target/debug

# Write the generated pages anew.
docs:
    UPDATE_PAGES=1 cargo test --test it generated

bench:
    cargo bench -p culvert-bench

# The whole service on this machine.
try:
    cargo run -- dev
