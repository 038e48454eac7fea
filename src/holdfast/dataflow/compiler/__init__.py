"""From a pipeline to Structured Streaming queries.

    plan.py       which vertices are one query, what is cut, and why; plain data, without Spark
    cuts.py       the edges that must become quivers
    explain.py    the plan in words
    frames.py     vertices as DataFrames
    python.py     runs of Python functions as one `mapInArrow`
    reduces.py    windows, aggregates, late rows
    tails.py      what is done with a batch: branches, sinks, fallbacks, each once

A query has a *trunk*, the part that Spark keeps state for, and *tails* behind it, which are
ordinary batches. Where trunk and tail meet is a *tap*.
"""
