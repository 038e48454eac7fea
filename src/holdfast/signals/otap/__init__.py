"""OTAP, OpenTelemetry's protocol of Arrow tables: what its batches are, whatever carried them.

A batch is a handful of tables (`payloads.py`) that refer to each other by small numbers. On a
stream they are written so that they compress well: dictionaries are sent once and grow, and the
numbers are differences (`ids.py`). What is stored and handed on here is neither: the tables of a
batch need nothing that came before them, and their ids are plain.

    bytes of a stream  --StreamDecoder-->  tables  --otlp_of-->  requests of OTLP
                       <--StreamEncoder--          <--otap_of--

`payloads` needs nothing that is not installed; all other modules need the extra `otel`.
"""
