"""File sets: versioned trees of files, as sorted tar streams and indexes of them."""
