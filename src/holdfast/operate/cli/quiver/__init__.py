"""The commands of `holdfast quiver`, a few to a module."""
