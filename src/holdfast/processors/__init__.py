"""Processors: small, stateless steps between the buffer and a destination.

They come behind the quiver and never before it: what a sender was told is stored is stored as it
came, and a mistake in a rule costs a replay and no event. Each destination has its own chain, so
an event may leave redacted to one and whole to another.
"""
