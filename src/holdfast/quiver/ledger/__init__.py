"""What became of every bundle for every subscriber: lines and checkpoints."""
