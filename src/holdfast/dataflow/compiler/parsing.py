"""Spark's own parser, for checks before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import ParseException

from holdfast.dataflow.spec.checks import Parse, plausible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_parser(session: SparkSession) -> Parse:
    """Return what says what is wrong with an expression, as long as the session runs."""
    # `functions.expr` does not parse before it is used, and then it wants columns.
    parser = session._jsparkSession.sessionState().sqlParser()

    def parse(text: str) -> str | None:
        try:
            parser.parseExpression(text)
        except ParseException as error:
            told = [line for line in str(error).splitlines() if line.strip()]
            return told[0] if told else "it cannot be parsed"
        return plausible(text)

    return parse
