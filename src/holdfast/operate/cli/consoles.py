"""Where commands write what is more than plain text: two consoles that know their terminal.

Apart from `output`, because loading them takes longer than many a command.
"""

from __future__ import annotations

from rich.console import Console

# In a pipe or a log there is no width to keep to, and somebody may search for the text.
PIPE_COLUMNS = 240

stdout = Console()
if not stdout.is_terminal:
    stdout = Console(width=PIPE_COLUMNS)
stderr = Console(stderr=True)
