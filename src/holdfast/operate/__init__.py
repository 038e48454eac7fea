"""Running Holdfast: the command line, health, metrics."""
