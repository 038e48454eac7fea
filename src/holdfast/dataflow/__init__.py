"""Dataflow: pipelines on Spark over quivers, with a watermark that is a promise.

One event, from a quiver into a window and out into a commit. Four processes take part: the gateway
that owns the quiver, the process in which Spark plans a source, the executors, and the driver.

    1  plan      source/stream.py is asked for the next offset. source/planner.py asks the client
                 of every quiver (source/quiver_client.py) to pin a range, durably, and to report
                 event times; watermark/ makes one claim of all reports. Ranges and claim are the
                 offset, which Spark writes down before it reads anything.
    2  read      source/partitions.py runs in executors. It reads sealed segments, from the disk or
                 over Flight, and adds the claim to every row (`_wm`, and `_wm_prev`, that of the
                 batch before). Rows that do not fit the query are *rejected rows*: they are judged
                 (rejected_judge.py) and staged in a file (rejected_stage.py) on the way.
    3  reduce    compiler/frames.py and python.py make DataFrames of vertices. compiler/reduces.py
                 decides by `_wm_prev` what is late, before Spark could drop it, and lets Spark's
                 own watermark be the claim, which closes windows.
    4  tail      What leaves the trunk is one DataFrame for each batch. compiler/tails.py runs in
                 the driver and takes it apart: branches, retry lane, dead letters, sinks.
    5  sink      sink/ stages rows in the tasks and publishes them in the driver, once for each
                 batch: a *batch record* (sink/records.py) says which batches have been published.
                 For a store that is one layer and one commit (sink/commit_writer.py).
    6  commit    Spark writes its commit log. The planner reads that, not Spark's call, which comes
                 too late: first rejected rows become dead letters (rejected_publish.py), then the
                 range is acknowledged to the quiver, whose ledger has the outcome from then on.

A crash anywhere costs doing steps again, with the same rows and the same claim, because 1 and 6 are
durable and everything between them is a function of the offset.

Imports point down this list: kit, driver, compiler, sink and filesets, source, spec, base and
watermark. `data_source.py` is what Spark loads; `run.py` and `session.py` are for users.
"""
