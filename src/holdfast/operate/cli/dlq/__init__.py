"""The commands of `holdfast dlq`."""
