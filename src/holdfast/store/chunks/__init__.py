"""Chunks: streams cut where their content says, stored once, read back verified."""
