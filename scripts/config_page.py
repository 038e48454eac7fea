"""Write docs/reference/config.md from the models of the configuration.

    python scripts/config_page.py

Run it after a change of a setting; a test fails while the page and the code disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast.deliver.settings import DeliverySettings
from holdfast.graph.model import GraphFile
from holdfast.graph.registry import COMPONENTS, Component
from holdfast.graph.reload import LIVE_KEYS
from holdfast.graph.schema import Setting, settings_of

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "config.md"

HEAD = """\
# The graph file

One YAML file says what a gateway receives, where it holds it, and where it goes. This page is
written by `scripts/config_page.py` from the models in the code.

```sh
holdfast validate CONFIG          # what is wrong, with line and column; keys first, then edges
holdfast print-config CONFIG      # with every default filled in, and secrets hidden
holdfast config schema            # JSON Schema, for editors
holdfast graph CONFIG             # a drawing
holdfast up CONFIG                # run it
```

- Sizes are written `32MB` (powers of 1024; a plain number counts bytes), durations `25ms`, `10s`,
  `5m`, `72h`, `3d` (a plain number counts seconds).
- `${env:NAME}`, `${env:NAME:-default}` and `${file:PATH}` stand for the text of a variable or a
  file, in values only. The text is never read as YAML. `$${` is a plain `${`.
- Relative paths begin at the folder of the file.
- The file is YAML 1.2: `on`, `yes` and `12:30` are text. A key that nobody knows, or that stands
  there twice, is an error.

**Connections.** A receiver leads to a quiver, a quiver to exporters, by processors if you like:
`to: [a, b]`, or port by port with `out_ports`, as a `route` needs it. Processors stand behind the
quiver, so what they do not let through is an outcome in the ledger. A line of them may also lead
from a receiver to a quiver ([what that costs](processors.md#before-the-buffer)). Without a node of
type `quiver` there is one all the same, in `data_dir`, right behind the receivers. With
`dispatch_strategy: round_robin` the exporters behind a port are one destination (`NODE.PORT`) and
take turns.

**Files of OTAP dataflow.** Its names of components and keys are known: `plugin_urn:
urn:otel:otlp:receiver` and `type: receiver:otlp` are both the receiver `otlp`. Three of them mean
more than ours, and `print-config` shows it written out. Behind `urn:otap:processor:persistence`,
`round_robin` gives every destination everything, because there each of them is a subscriber of its
own; `validate` says so. `processor:durable_buffer` has its settings in one level
(`retention_size_cap`, `size_cap_policy`, `max_age`, `max_segment_open_duration`), and
`exporter:otlp_http` is the exporter `otlp` with `protocol: http`. Of keys,
`max_retain_after_ingestion_hours` is `max_age` in hours, `steady_state_headroom` is
`keep_delivered`, and `protocols.grpc.listening_addr` is `listening_addr`. What is left of a
template, such as `{{host}}`, is warned of.

**Without a buffer.** `persistence: none` keeps nothing: a receiver answers when every destination
has acknowledged, with 503 (UNAVAILABLE over gRPC) when one has not, and the sender, who has the
only copy, sends it again, also to those that had it. What a destination refuses for good is a dead
letter. A destination gets one request after another, or as many at once as its `lanes` with
`order: key`; of `delivery`, only these, `signals` and `send_timeout` have a meaning. There are no
quivers, no data nodes and no Flight, and every change of the nodes needs a restart.

**Several workers.** Each has its own quiver (`core-00`, `core-01`, … in the quiver's directory) and
its own dead letters (`dead_letters`, `dead_letters-01`, …); the kernel spreads connections over
them. Order is kept within a worker, so `order: received` with several is an error, unless nothing
that is delivered promises an order (OpenTelemetry does not). The caps of the quiver are those of
all workers together; those in `delivery` are per worker. With fewer workers than before, the others
deliver what the missing ones left.

**Signals.** `SIGTERM` stops within `drain`, a second one at once. `SIGHUP` reads the file again.
Applied without a restart:

- everything about exporters, their `delivery`, the processors before them, and handlers of dead
  letters: a destination that changed is restarted where it was;
- what a receiver can take while it listens (`openlineage`: `tokens`, `token_file`);
- {live}.

Anything else is named in the log, and needs a restart. A file with errors changes nothing.
"""

COLUMNS = "| key | type | default | what it is |\n|---|---|---|---|\n"


def page() -> str:
    """Return the whole page."""
    live = " and ".join(f"`{key}`" for key in LIVE_KEYS)
    whole = [row for row in settings_of(GraphFile) if ".delivery." not in row.key]
    parts = [
        HEAD.replace("{live}", live),
        _section("The file", "", whole),
        _section(
            "delivery",
            "How the events of an exporter are delivered; a destination is one exporter.",
            settings_of(DeliverySettings),
        ),
    ]
    parts += [_component(one) for one in COMPONENTS]
    return "\n".join(parts)


def _component(one: Component) -> str:
    aliases = f" Also: {', '.join(f'`{name}`' for name in one.aliases)}." if one.aliases else ""
    extra = f" Needs `pip install '.[{one.extra}]'`." if one.extra else ""
    text = f"{one.summary}{aliases}{extra}"
    return _section(f"{one.kind} `{one.type}`", text, settings_of(one.config_model))


def _section(title: str, text: str, rows: Iterable[Setting]) -> str:
    intro = f"{text}\n\n" if text else ""
    lines = "".join(
        f"| `{row.key}` | {_cell(row.type)} | {_code(row.default)} | {_cell(row.text)} |\n"
        for row in rows
    )
    return f"## {title}\n\n{intro}{COLUMNS}{lines}"


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text and text != "required" else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
