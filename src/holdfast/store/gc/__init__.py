"""Garbage collection: who refers to which chunk, and what becomes of chunks nobody refers to."""
