"""Telemetry as flat tables: one row for each span, log record or data point.

schema       the three tables; needs nothing that is not installed
wire         where the fields of messages stand, of many messages at a time
wire_columns fields of messages as columns
points       data points of all types as columns of one table
nested       messages as Arrow columns that are nested as they are, and back: by ptars, or by
             protobuf's own reader and Python
columns      keys of attributes; columns of flat tables as columns of nested form
values       attributes and their values, all together
json_value   lists and maps within attributes, as JSON that keeps their types
pieces       requests in pieces that are small enough for one call
table        requests to a flat table
requests     a flat table to requests
"""
