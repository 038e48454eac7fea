"""What may go, what must go, and who has to wait."""
