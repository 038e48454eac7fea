"""Signals: what the bytes mean. Nothing here reads or writes; it only understands."""
