"""Processors: small, stateless steps between the buffer and a destination.

They come behind the quiver: what a sender was told is stored is stored as it came, and a mistake in
a rule costs a replay and no event. Each destination has its own chain, so an event may leave
redacted to one and whole to another. Whoever wants a smaller buffer may put some before it
(receive/before_buffer.py), and pays with what they drop.
"""
