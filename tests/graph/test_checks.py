"""What can be wrong with a graph as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.graph.files import findings, hints, load_text

from holdfast.deliver.settings import REMOVED_KEYS


def nodes(*lines: str, head: str = "") -> str:
    """Return a file with these nodes, one per line, from line 2 on (or behind the head)."""
    return head + "nodes:\n" + "".join(f"  {line}\n" for line in lines)


IN = "in: {kind: receiver, type: toy, to: [hold]}"
HOLD = "hold: {kind: processor, type: quiver, to: [out]}"
OUT = "out: {kind: exporter, type: memory}"
BEFORE = "comes before the quiver: what it drops is answered with success, is in no ledger and "
BEFORE += "cannot be replayed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Names.
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [out, outt]}", OUT),
         ["3:51 error there is no node 'outt'"]),
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [out, out]}", OUT),
         ["3:51 error 'out' is named twice"]),
        (nodes("in: {kind: receiver, type: toy, to: hold}",
               "hold: {kind: processor, type: quiver, out_ports: {p: {destinations: [x]}}}"),
         ["3:72 error there is no node 'x'"]),
        (nodes(IN, HOLD, OUT, head="dead_letters: {handlers: {out: {type: memory}}}\n"),
         ["1:27 error 'out' is the name of a node, too"]),
        # Directions.
        (nodes(IN, HOLD, "out: {kind: exporter, type: memory, to: [hold]}"),
         ["4:44 error an exporter has no destinations",
          "3:46 error these components form a cycle: hold, out"]),
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [out, in]}", OUT),
         ["3:51 error 'in' is a receiver: it has no input",
          "2:40 error these components form a cycle: hold, in"]),
        (nodes("in: {kind: receiver, type: toy, to: [hold], delivery: {}}", HOLD, OUT),
         ["2:47 error only exporters deliver"]),
        # Circles.
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [a]}",
               "a: {kind: processor, type: drop, to: [b]}",
               "b: {kind: processor, type: drop, to: [a, out]}", OUT),
         ["4:41 error these components form a cycle: a, b"]),
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [a]}",
               "a: {kind: processor, type: drop, to: [a, out]}", OUT),
         ["4:41 error these components form a cycle: a"]),
        # Receivers and quivers.
        (nodes("in: {kind: receiver, type: toy}", HOLD, OUT),
         ["2:3 error the receiver 'in' does not lead to a quiver"]),
        (nodes("in: {kind: receiver, type: toy, to: [out]}", HOLD, OUT),
         ["2:3 error the receiver 'in' does not lead to a quiver",
          "2:40 error 'out' bypasses the quiver"]),
        (nodes("in: {kind: receiver, type: toy, to: [hold, two]}", HOLD,
               "two: {kind: processor, type: quiver, to: [out]}", OUT),
         ["2:3 error the receiver 'in' leads to two quivers"]),
        (nodes("in: {kind: receiver, type: toy, to: [a]}",
               "a: {kind: processor, type: drop, to: [hold]}", HOLD, OUT),
         [f"3:3 warning 'a' {BEFORE}"]),
        (nodes("in: {kind: receiver, type: toy, to: [a, hold]}",
               "a: {kind: processor, type: drop, to: [hold]}", HOLD, OUT),
         ["2:3 error several paths lead from 'in' to its quiver",
          f"3:3 warning 'a' {BEFORE}"]),
        (nodes("in: {kind: receiver, type: toy, to: [a]}",
               "a: {kind: processor, type: drop, to: [hold, out]}", HOLD, OUT),
         ["3:47 error 'out' bypasses the quiver",
          f"3:3 warning 'a' {BEFORE}"]),
        (nodes("in: {kind: receiver, type: toy, to: [a]}",
               "a: {kind: processor, type: drop, to: [out]}", HOLD, OUT),
         ["2:3 error the receiver 'in' does not lead to a quiver",
          "2:40 error 'a' bypasses the quiver"]),
        (nodes("in: {kind: receiver, type: toy, to: [r]}",
               "r: {kind: processor, type: letters, config: {by_letter: {a: one}}, "
               "out_ports: {one: {destinations: [hold]}}}", HOLD, OUT),
         ["3:3 error 'r' comes before the quiver, and chooses between ports"]),
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [two]}",
               "two: {kind: processor, type: quiver, to: [out]}", OUT),
         ["3:46 error 'hold' comes before the quiver 'two'"]),
        (nodes("in: {kind: receiver, type: toy}", OUT),
         ["2:3 error the receiver 'in' leads nowhere",
          "3:3 warning 'out' is not connected, and is not started"]),
        (nodes("in: {kind: receiver, type: toy, to: [out]}",
               "more: {kind: receiver, type: toy, to: [two]}", OUT,
               "two: {kind: exporter, type: memory}"),
         ["3:3 error 'more' and 'in' lead to different nodes"]),
        # What is not connected.
        (nodes(IN, HOLD, OUT, "two: {kind: exporter, type: memory}",
               "a: {kind: processor, type: drop, to: [two]}"),
         ["5:3 warning 'two' is not connected, and is not started",
          "6:3 warning 'a' is not connected, and is not started"]),
        (nodes(IN, "hold: {kind: processor, type: quiver}"),
         ["3:3 warning nothing reads the quiver 'hold'"]),
        (nodes(HOLD, OUT),
         ["1:1 warning there is no receiver: only what is stored already is delivered"]),
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [a, out]}",
               "a: {kind: processor, type: drop}", OUT),
         ["4:3 warning 'a' has no destinations"]),
        # Order and workers.
        (nodes(IN, HOLD, OUT, head="workers: 2\n"),
         [("5:3 error 'out' is delivered in the order received, and there are 2 workers: each "
          "has an order of its own"),
          "3:3 error workers share a port, and port 0 is another one for each of them"]),
        (nodes("in: {kind: receiver, type: toy, to: [hold], config: {listen: ':5000'}}", HOLD,
               "out: {kind: exporter, type: memory, delivery: {order: received}}",
               head="workers: 2\n"),
         [("5:57 error 'out' is delivered in the order received, and there are 2 workers: each "
          "has an order of its own")]),
        (nodes("in: {kind: receiver, type: toy, to: [hold], config: {listen: ':5000'}}",
               "hold: {kind: processor, type: quiver, to: [out], "
               "config: {retention: {size_cap: 100MB}}}",
               "out: {kind: exporter, type: memory, delivery: {order: key}}",
               head="workers: 2\n"),
         [("4:83 error the size cap divided by 2 cores is 52428800 bytes, less than four segments "
          "(67108864 bytes)")]),
        (nodes(IN, HOLD, "out: {kind: exporter, type: memory, delivery: {retention_size: 1MB}}"),
         ["4:66 error retention_size is less than a segment (16MB)"]),
        (nodes(IN, HOLD, "out: {kind: exporter, type: memory, delivery: {retention_size: 1TB}}"),
         ["4:66 warning retention_size is more than the quiver holds (10GB)"]),
        # Several ways to one destination.
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [a, out]}",
               "a: {kind: processor, type: drop, to: [out]}", OUT),
         ["5:3 warning several paths lead to 'out'"]),
        (nodes(IN, HOLD, "more: {kind: receiver, type: toy, to: [two]}",
               "two: {kind: processor, type: quiver, to: [out]}", OUT),
         ["6:3 error 'out' is fed by two quivers"]),
        # Ports.
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [r]}",
               "r: {kind: processor, type: letters, config: {by_letter: {a: one, b: two}}, "
               "out_ports: {one: {destinations: [out]}, three: {destinations: [out]}}}", OUT),
         ["4:3 error 'r' sends events to the port 'two', and nothing is behind it",
          "4:118 warning no rule of 'r' uses the port 'three'"]),
        (nodes(IN, "hold: {kind: processor, type: quiver, out_ports: {p: {destinations: [a, out], "
               "dispatch_strategy: round_robin}}}",
               "a: {kind: processor, type: drop, to: [out]}", OUT),
         ["3:100 error only exporters can take turns"]),
        (nodes(IN, "hold: {kind: processor, type: quiver, out_ports: {p: {destinations: [a, out], "
               "dispatch_strategy: round_robin}}}",
               "a: {kind: exporter, type: memory, delivery: {order: key}}", OUT),
         ["3:100 error exporters that take turns are one destination"]),
        (nodes(IN.replace("hold", "h" * 60), "h" * 60 +
               ": {kind: processor, type: quiver, out_ports: {long: {destinations: [a, out], "
               "dispatch_strategy: round_robin}}}",
               "a: {kind: exporter, type: memory}", OUT),
         [f"3:159 error '{'h' * 60}.long' is too long a name"]),
        # A processor that cannot be made.
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [a]}",
               "a: {kind: processor, type: drop, to: [out], config: {drop: ''}}", OUT),
         ["4:55 error it cannot be made: an empty word is in everything"]),
        # Addresses.
        (nodes("in: {kind: receiver, type: toy, to: [out], config: {listen: '127.0.0.1:8480'}}",
               OUT),
         ["2:63 error 'admin' listens there already"]),
        (nodes("in: {kind: receiver, type: toy, to: [out], config: {listen: ':5000'}}",
               "more: {kind: receiver, type: toy, to: [out], config: {listen: '[::1]:5000'}}",
               OUT),
         ["3:65 error 'in' listens there already"]),
        (nodes("in: {kind: receiver, type: toy, to: [out], config: {listen: ':5000'}}",
               "out: {kind: exporter, type: memory, config: {url: 'http://localhost:5000/x'}}"),
         ["3:3 warning 'out' sends to 'in' of this same file"]),
        # Directories.
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [out], config: {path: ./d}}",
               "out: {kind: exporter, type: memory, config: {directory: d/../d}}"),
         ["4:59 error its directory is also that of 'hold', or one is inside the other"]),
        (nodes("in: {kind: receiver, type: toy, to: [out, other], config: {listen: ':5000'}}",
               "out: {kind: exporter, type: memory, config: {directory: 's3://b/a'}}",
               "other: {kind: exporter, type: memory, config: {directory: 'S3://b/a/c/'}}"),
         ["4:61 error its directory is also that of 'out', or one is inside the other"]),
        (nodes("in: {kind: receiver, type: toy, to: [out, other], config: {listen: ':5000'}}",
               "out: {kind: exporter, type: memory, config: {directory: 's3://b/a'}}",
               "other: {kind: exporter, type: memory, config: {directory: 's3://b/ab'}}"),
         []),
        (nodes(IN, "hold: {kind: processor, type: quiver, to: [out], config: {path: ./d}}", OUT,
               head="data_dir: ./d\n"),
         ["4:67 error its directory is also that of 'dead_letters', or one is inside the other"]),
        (nodes(IN, HOLD, OUT, head="dead_letters: {path: ./holdfast_data/hold}\n"),
         ["4:3 error its directory is also that of 'dead_letters', or one is inside the other"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_where_it_has_to_change(
    text: str, expected: list[str], tmp_path: Path
) -> None:
    assert sorted(findings(tmp_path, text)) == sorted(expected)


@pytest.mark.parametrize(
    "text",
    [
        nodes(IN, HOLD, OUT),
        nodes("in: {kind: receiver, type: toy, to: [a]}",
              "a: {kind: processor, type: drop, to: [out]}", OUT),
        nodes("in: {kind: receiver, type: toy, to: [hold], config: {listen: ':5000'}}",
              "more: {kind: receiver, type: toy, to: [hold], config: {listen: ':5001'}}", HOLD,
              "out: {kind: exporter, type: memory, config: {url: 'http://elsewhere:5000'}}"),
        nodes(IN, "hold: {kind: processor, type: quiver, to: [r]}",
              "r: {kind: processor, type: letters, config: {by_letter: {a: one, b: two}}, "
              "out_ports: {one: {destinations: [out]}, two: {destinations: [d]}}}",
              "d: {kind: processor, type: drop, to: [out]}", OUT),
        nodes(IN, "hold: {kind: processor, type: quiver, out_ports: {p: {destinations: [a, out], "
              "dispatch_strategy: round_robin}}}", "a: {kind: exporter, type: memory}", OUT),
        nodes("in: {kind: receiver, type: toy, to: [hold], config: {listen: ':5000'}}", HOLD,
              "out: {kind: exporter, type: memory, delivery: {order: key}}",
              head="workers: 4\n"),
    ],
)  # fmt: skip
def test_a_sound_graph_gives_nothing_to_say(text: str, tmp_path: Path) -> None:
    assert findings(tmp_path, text) == []


def test_the_hint_for_a_processor_before_the_quiver_says_why(tmp_path: Path) -> None:
    text = nodes(
        "in: {kind: receiver, type: toy, to: [hold, a]}",
        "a: {kind: processor, type: drop, to: [out]}",
        HOLD,
        OUT,
    )
    assert any("an outcome in the ledger" in hint for hint in hints(tmp_path, text))


def test_a_name_whose_node_is_wrong_is_not_told_as_unknown(tmp_path: Path) -> None:
    text = nodes(IN, HOLD, "out: {kind: exporter, type: memroy}")
    assert findings(tmp_path, text) == ["4:31 error there is no exporter of type 'memroy'"]


@pytest.mark.parametrize("key", REMOVED_KEYS)
def test_a_key_that_has_no_effect_any_more_is_a_warning_where_it_stands(
    key: str, tmp_path: Path
) -> None:
    old = f"out: {{kind: exporter, type: memory, delivery: {{order: received, {key}: 3}}}}"
    loaded = load_text(tmp_path, nodes(IN, HOLD, old))
    (found,) = loaded.warnings
    assert (found.line, found.column) == (4, 67)
    assert found.message.startswith(f"`{key}` has no effect any more")
    assert found.hint == REMOVED_KEYS[key]


def test_warnings_do_not_stop_a_graph(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, nodes(HOLD, OUT))
    assert [one.severity for one in loaded.warnings] == ["warning"]


def test_a_key_with_a_unit_is_a_warning_where_it_first_is(tmp_path: Path) -> None:
    old = "out: {kind: exporter, type: memory, delivery: {retry_max_s: 3, retention_hours: 5}}"
    more = "other: {kind: exporter, type: memory, delivery: {retry_max_s: 3}}"
    hold = HOLD.replace("to: [out]", "to: [out, other]")
    assert hold != HOLD
    warned = load_text(tmp_path, nodes(IN, hold, old, more)).warnings
    assert [(found.line, found.column, found.message) for found in warned] == [
        (4, 50, "`retry_max_s` is now `retry_max`, and is an error in the next version"),
        (4, 66, "`retention_hours` is now `retention_time`, and is an error in the next version"),
    ]


def test_an_error_in_a_key_with_a_unit_is_found_where_it_is(tmp_path: Path) -> None:
    text = nodes(IN, HOLD, "out: {kind: exporter, type: memory, delivery: {retry_max_s: soon}}")
    assert findings(tmp_path, text) == [
        "4:50 warning `retry_max_s` is now `retry_max`, and is an error in the next version",
        (
            "4:63 error nodes.out.delivery.retry_max_s: 'soon' is not a duration; "
            "write a number with ms, s, m, h or d"
        ),
    ]
