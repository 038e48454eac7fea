"""The ways out, one module per type of destination: each has a `Config` and a `make`."""
