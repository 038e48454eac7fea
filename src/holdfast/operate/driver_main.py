"""What the driver process beside a gateway runs: `python -m holdfast.operate.driver_main`.

Its orders come as one line on its standard input, secrets among them: arguments and environment can
be read by others. Its standard output belongs to the figures it reports; everything else that may
print, Spark and Java included, is turned to standard error first.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.child import end_own_session
from holdfast.dataflow.driver.lineage import lineage_sender
from holdfast.dataflow.driver.process import keep_stdout, listen, run_pipelines
from holdfast.dataflow.driver.wire import DriverOrders
from holdfast.errors import HoldfastError
from holdfast.graph.model import LoggingSettings
from holdfast.graph.pipelines import load_pipelines
from holdfast.operate import logs

log = logging.getLogger("holdfast.pipelines")


def main() -> int:
    """Run pipelines until the end."""
    # First of all: whatever prints from here on is a line of the log.
    figures = keep_stdout()
    # What all threads do, in the log: `kill -USR2` of this process, `kill -QUIT` of its Java.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    orders = DriverOrders.decode(sys.stdin.buffer.readline())
    handler = logs.set_up(LoggingSettings(format="json", max_lines_per_s=1000))
    stop = threading.Event()
    listen(stop)
    try:
        loaded = load_pipelines(orders.file)
        if orders.access is not None:
            loaded = loaded.reaching(orders.access)
        pipelines = {
            name: (
                pipeline,
                Places(loaded.state_dir(name).absolute(), loaded.base_dir, loaded.quivers),
            )
            for name, pipeline in loaded.pipelines.items()
        }
        sender = lineage_sender(loaded.spark.lineage, orders.lineage_url)
        try:
            return run_pipelines(pipelines, loaded.spark, stop, figures, sender)
        finally:
            if sender is not None:
                sender.close()
    except HoldfastError as error:
        log.error("%s; %s", error.message, error.hint)
        return error.exit_code
    finally:
        handler.close()


if __name__ == "__main__":
    code = main()
    # Threads that wait for a Java process that is gone must not keep us.
    logging.shutdown()
    end_own_session()
    os._exit(code)
