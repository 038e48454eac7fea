"""The write-ahead log and the one writer: from an append to stable storage, and back."""
