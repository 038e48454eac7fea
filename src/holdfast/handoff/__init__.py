"""Replicated delivery to data nodes: the quiver is the store, its segments are the parts."""
