"""The watermark: a promise that no accepted event with an earlier time is still to be processed.

    gateways ──reports──▶ bounds ──▶ claims ──C──▶ the source's offsets ──_wm──▶ Spark's watermark

Spark's own watermark is the newest event time less a delay, over everything a batch has read: a
fast input makes the rows of a slow one late, silently, and without input it stands still. Here the
source *claims* a watermark, from what every gateway says about data that was not read yet, and
drives Spark's with it (compiler/reduces.py). A row is late only against a claim that was made
before it came, and late rows are data too: they are counted or kept, never dropped silently. A row
that failed and will come again is not done: it holds what its query promises (compiler/lane.py).

Three words, from the gateway to Spark. A quiver *states* what only it can know about the event
times beyond a position (`EventTimeStatement`, quiver/engine/event_times.py). The client of that
quiver turns the statement into a *report* by the pipeline's settings: whether it counts as idle,
and which producers' promises hold (`EventTimeReport`). A report *bounds* the claim,
and the *claim* is the least of all bounds, which never moves back (`claims.py`).
"""
