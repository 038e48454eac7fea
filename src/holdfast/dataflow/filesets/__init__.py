"""File sets and Spark: a commit is read by many tasks, each batch of a query is a commit.

    read     driver: pin, shards, keys ──▶ tasks: objects alone
    sink     tasks: encode ──▶ driver: batch record, layer, commit (sink/commit_writer.py)
    compact  tasks: merge a range of paths ──▶ driver: stores chunks, joins the ranges
    audit    tasks: compare the facts of some hashes ──▶ driver: the report

Only the driver talks to the database of a store. Tasks get the names of the objects they read, and
give back what is to be written: a chunk is safe from the collector from the moment it is reserved
under a lease that is renewed, and of all that Spark starts only the driver can.
"""
