"""Objects: named, immutable bytes in a folder or in a bucket."""
