"""What every part of a quiver stands on: names, settings, fault points, frames, rows as Arrow."""
