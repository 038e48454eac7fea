"""The source: `spark.read` and `spark.readStream` over quivers, as `format("holdfast")`.

    query ── offsets ──▶ stream.py ── plan, pin ──▶ cursor of every quiver (quiver_client.py)
                            │                          └─ statements ──▶ the claim (watermark/)
                            ▼ partitions
    executor ◀──────── partitions.py: reads sealed segments, adds the watermark columns

Other ways in: `stored.py` reads what is stored, without a subscriber (`spark.read`, and the stream
of a replay), `intake.py` takes files and made-up rows into a quiver first.

One query is one subscriber of each quiver it reads. What Spark has in its offset log is pinned in
the quivers' ledgers, so that a batch that is run again reads the same rows; what Spark has in its
commit log is acknowledged.

Columns change. Rows that do not fit the types that a query began with are found in the executor
(rejected_judge.py), left in files beside the checkpoint (rejected_stage.py), and become dead
letters when their batch is committed (rejected_publish.py).
"""
