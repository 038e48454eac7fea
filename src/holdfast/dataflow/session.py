"""Starting Spark for pipelines from Python: the name that the guide gives it."""

from holdfast.dataflow.driver.session import start_session, stop_session

__all__ = ["start_session", "stop_session"]
