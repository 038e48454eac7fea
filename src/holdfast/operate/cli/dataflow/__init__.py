"""Commands of `holdfast dataflow`."""
