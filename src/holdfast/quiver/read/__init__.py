"""The two ways to read, what they share, and what they see."""
