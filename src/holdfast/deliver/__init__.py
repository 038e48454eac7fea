"""Deliver: exporters, and the loop that drives them: order, retry, breakers, dead letters."""
