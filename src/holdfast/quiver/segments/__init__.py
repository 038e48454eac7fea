"""Immutable sets of bundles as plain Arrow files: built, read, catalogued."""
