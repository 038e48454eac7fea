"""What the commands share: how they are grouped, what they work on, what they print."""
