"""The operator's tools: look into a data directory, check it, change it, copy it.

All work beside a running owner and without one. What only looks reads the files (inspect.py); what
changes something asks the owner (engine/control.py), or takes the lock where there is none.
"""
