"""Sinks: each batch of a query counts once, however often Spark runs it.

    tasks ── stage ──▶ driver: batch record ▶ publish
                       (records.py)           quiver: one idempotent transaction
                                              files: renames into the folder

Promise: each sink once, and all sinks of a query after recovery. What makes a batch count is its
*batch record*: the batch's number and the range of the sources that it covered.
"""
