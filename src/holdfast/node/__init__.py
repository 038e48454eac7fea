"""A data node: keeps the parts that senders hand over, each once, until retention takes them."""
