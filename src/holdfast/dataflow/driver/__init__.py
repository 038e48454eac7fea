"""Drivers of pipelines: the process that runs Spark beside a gateway, and what keeps it going."""
