"""OpenTelemetry's own protocol: what its requests are, whatever carried them.

`kinds` needs nothing that is not installed; all other modules need the extra `otel`.
"""
