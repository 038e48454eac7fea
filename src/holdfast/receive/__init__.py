"""Receive: what stands before the buffer: sockets, admission, validation, answers."""
