"""Running a pipeline from Python: the name that the guide gives it."""

from holdfast.dataflow.driver.run import PipelineRun

__all__ = ["PipelineRun"]
