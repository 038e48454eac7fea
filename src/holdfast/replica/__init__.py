"""What a sender and a data node both know: parts, how they are checked, and what is said of them.

part.py       a part is a sealed segment, byte for byte; its identity; its bytes as slices
verify.py     every checksum of a part's manifest, and whether the manifest itself can be true
messages.py   offers, answers and health statements, and their form as JSON
transport.py  how the two talk: what every transport does, and how it fails
    flight.py     the transport over Arrow Flight
"""
