"""Edge: small, stateless processors between the buffer and a destination."""
