"""Immutable sets of bundles as plain Arrow files: built, sealed, catalogued."""
