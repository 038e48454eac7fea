"""The commands of `holdfast files`, by what they do: look, change, move in and out."""
