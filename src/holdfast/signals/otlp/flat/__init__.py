"""Telemetry as flat tables: one row for each span, log record or data point.

schema       the three tables; needs nothing that is not installed
nested       requests as Arrow columns that are nested as their messages are, and back:
             by ptars, or by protobuf's own reader and Python
columns      columns of nested form as columns of flat tables, and back
values       attributes and their values, all together
json_value   lists and maps within attributes, as JSON that keeps their types
pieces       requests in pieces that are small enough for one call
table        requests to a flat table
requests     a flat table to requests
"""
