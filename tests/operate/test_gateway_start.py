"""What a gateway loads when it starts: modules are looked for, because memory is the machine's."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.patience import PATIENCE_S

# What `holdfast up` loads for lineage to one backend, with the console.
LOAD = """
import json, sys
import holdfast.console.app, holdfast.operate.cli.cmd_up
import holdfast.deliver.exporters.http, holdfast.receive.openlineage_endpoints
before = sorted(sys.modules)
from holdfast.quiver.base import compute
added = compute.add(1, 2).as_py()
print(json.dumps({"before": before, "sum": added, "after": sorted(sys.modules)}))
"""


def test_a_gateway_loads_arrows_functions_when_one_is_called() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOAD], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    found = json.loads(ran.stdout)
    assert "pyarrow.compute" not in found["before"]
    assert found["sum"] == 3
    assert "pyarrow.compute" in found["after"]
