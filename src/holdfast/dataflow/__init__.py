"""Dataflow: pipelines on Spark over quivers, with a watermark that is a promise."""
