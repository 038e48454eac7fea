"""Whether a store is what its commits say: check, scrub, repair, and rebuild of a lost database."""
