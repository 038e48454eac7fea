"""What `holdfast demo` runs: a gateway, its client and backends, Spark, a store, and kill -9."""
