"""Dead letters: events that were not accepted, or not delivered, each with its reason."""
