"""The store: content-addressed chunks, file sets made of them, and the collector of the rest."""
