"""The name of `holdfast.dead_letters` in versions before, with its modules. It goes with the next.

An import of `holdfast.deadletter.office` imports this module first, and then finds what it asked
for in `sys.modules`.
"""

from __future__ import annotations

import sys

from holdfast.dead_letters import letter, queue, stored

sys.modules[f"{__name__}.letter"] = letter
sys.modules[f"{__name__}.office"] = queue
sys.modules[f"{__name__}.shelf"] = stored
