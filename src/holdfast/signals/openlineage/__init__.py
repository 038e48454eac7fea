"""OpenLineage: what its events must look like, what they are called, and when they happened."""
