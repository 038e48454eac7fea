"""`holdfast handoff`: what waits for data nodes, what they lack, and what to do about it.

Every command asks the running gateway (handoff/control.py), and each of its workers answers with
records of its own; here they are one list. What gives data up says first how much that would be,
and asks. What takes long is asked for in turns, so that an interrupt leaves nothing half done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from holdfast.errors import BadInput, CheckFailed, Damaged, Overloaded
from holdfast.handoff.control import ANSWER_S, VERB, HandoffRecord
from holdfast.operate.cli.base.asking import ask
from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    print_json,
    print_table,
    size,
)
from holdfast.operate.cli.base.target import Target, as_ns, gateway_argument, time_option
from holdfast.units import parse_duration_s, parse_size_bytes

# How often a gateway is asked by what waits for something.
POLL_S = 0.5

node_option = click.option("--node", help="Only this data node.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(cls=CommandGroup)
def command() -> None:
    """Show what waits for data nodes and what they lack; pause, repair, give up, forget.

    TARGET is the graph file or the data directory of a running gateway; by default
    ./holdfast_data. A part is named as `ls` prints it: QUIVER_ID:FIRST_SEQ-LAST_SEQ.
    """


# ----------------------------------------------------------------------- looking


@command.command("status")
@gateway_argument
@node_option
@json_option
def status_command(target: Target, node: str | None, as_json: bool) -> None:
    """List data nodes: state, how much waits for each, and what blocks it."""
    found = _known(_ask(target, "status", node=node), node)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["node"],
            one["address"],
            _sender(one),
            _state(one),
            one["state_age_s"],
            one["pending_parts"],
            size(one["pending_bytes"]),
            one["oldest_age_s"],
            len(one["held"]),
            len(one["gaps"]),
            one["sent_parts"],
            "" if one["rate_bytes_s"] is None else f"{size(int(one['rate_bytes_s']))}/s",
            one["problem"],
        )
        for one in found
    ]
    columns = ("node", "address", "sender", "state", "for (s)", "wait", "size", "oldest (s)")
    print_table("data nodes", (*columns, "held", "gaps", "sent", "rate", "problem"), rows)


@command.command("ls")
@gateway_argument
@node_option
@click.option("--held", is_flag=True, help="Only parts that are held.")
@json_option
def list_command(target: Target, node: str | None, held: bool, as_json: bool) -> None:
    """List the parts that wait for data nodes, oldest first, and why they wait."""
    found = _ask(target, "ls", node=node, held=held)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["node"],
            one["part"],
            size(one["size_bytes"]),
            one["events"],
            one["oldest_age_s"],
            one["state"],
            one["reason"],
        )
        for one in found
    ]
    columns = ("node", "part", "size", "events", "oldest (s)", "state", "reason")
    print_table("parts that wait", columns, rows)


@command.command("show")
@click.argument("part")
@gateway_argument
@json_option
def show_command(part: str, target: Target, as_json: bool) -> None:
    """Show what the gateway and every data node know of PART."""
    found = _ask(target, "show", part=part)
    if not found:
        raise BadInput(
            f"this gateway has no part {part!r}"[:200], hint="`holdfast handoff ls` names parts"
        )
    if as_json:
        print_json(found)
        return
    rows = [
        (one["node"], one["state"], one.get("says", ""), one["reason"] or one.get("folder", ""))
        for one in found
    ]
    print_table(part, ("where", "state", "it says", "more"), rows)


# ---------------------------------------------------------------------- changing


@command.command("pause")
@click.argument("node")
@gateway_argument
@json_option
def pause_command(node: str, target: Target, as_json: bool) -> None:
    """Send nothing to NODE until it is resumed, also after a restart; parts wait for it."""
    _done(_known(_ask(target, "pause", node=node), node), f"{node} is paused", as_json)


@command.command("resume")
@click.argument("node")
@gateway_argument
@json_option
def resume_command(node: str, target: Target, as_json: bool) -> None:
    """Send to NODE again."""
    _done(_known(_ask(target, "resume", node=node), node), f"{node} is resumed", as_json)


@command.command("rate")
@click.argument("rate")
@gateway_argument
@node_option
@json_option
def rate_command(rate: str, target: Target, node: str | None, as_json: bool) -> None:
    """Send at most RATE a second (such as 20MB, or `off`), to one node or to all together.

    New parts do not wait for it, and count. It holds until the next restart; for longer, set
    `node_rate` or `rate` in the graph file. Several workers share it.
    """
    try:
        bytes_s = None if rate == "off" else parse_size_bytes(rate)
    except ValueError as error:
        raise BadInput(f"{rate!r} is no rate: {error}"[:200], hint="use 20MB, or off") from None
    found = _known(_ask(target, "rate", node=node, bytes_s=bytes_s), node)
    text = "no limit" if bytes_s is None else f"{size(bytes_s)} a second"
    _done(found, f"{node or 'all data nodes together'}: {text}", as_json)


@command.command("retry")
@click.argument("node")
@gateway_argument
@json_option
def retry_command(node: str, target: Target, as_json: bool) -> None:
    """Try NODE again now, and every part for it, without waiting after failures."""
    _done(_known(_ask(target, "retry", node=node), node), f"{node} is tried now", as_json)


@command.command("release")
@gateway_argument
@node_option
@click.option("--part", help="Only this part.")
@json_option
def release_command(target: Target, node: str | None, part: str | None, as_json: bool) -> None:
    """Offer held parts again, once the reason is fixed."""
    found = _ask(target, "release", node=node, part=part)
    released = sum(one["released"] for one in found)
    _done(found, f"{counted(released, 'part')} released", as_json)


@command.command("discard")
@click.argument("part")
@gateway_argument
@node_option
@yes_option
@json_option
def discard_command(part: str, target: Target, node: str | None, yes: bool, as_json: bool) -> None:
    """Give up PART for one data node, or for all that it is held for. It is lost to them.

    The ledger keeps the exact range; `repair` may fetch it from a data node that has it.
    """
    _give_up(target, "discard", yes, as_json, part=part, node=node)


@command.command("drop")
@click.argument("node")
@gateway_argument
@time_option("--before", "Parts whose newest event came before this moment.")
@yes_option
@json_option
def drop_command(
    node: str, target: Target, before: datetime | None, yes: bool, as_json: bool
) -> None:
    """Give up what waits for NODE and is older than --before. NODE will not get it.

    The ledger keeps the exact ranges; `repair` may fetch them from a data node that has them.
    """
    if before is None:
        raise BadInput("--before is missing", hint="write --before 2026-11-15T10:00:00+00:00")
    _known(_ask(target, "status", node=node), node)
    _give_up(target, "drop", yes, as_json, node=node, before_ns=as_ns(before))


@command.command("add")
@click.argument("node")
@click.argument("address")
@gateway_argument
@click.option("--exporter", help="Of which exporter, if the gateway has several to data nodes.")
@click.option("--dry-run", is_flag=True, help="Only say whether it could be added.")
@json_option
def add_command(
    node: str, address: str, target: Target, exporter: str | None, dry_run: bool, as_json: bool
) -> None:
    """Add a data node, named NODE, at ADDRESS (host:port), while the gateway runs.

    It gets what is accepted from now on; what came before belongs to those who owned it then. It
    stays until it is forgotten, also after a restart. As soon as the graph file or a nodes file
    names it, the address there counts.
    """
    exporters = sorted({one["component"] for one in _ask(target, "senders")})
    if exporter is None and len(exporters) > 1:
        raise BadInput(
            f"the gateway sends to data nodes by {' and '.join(exporters)}",
            hint="say to which one it belongs: --exporter NAME",
        )
    if exporter is not None and exporter not in exporters:
        raise BadInput(
            f"no exporter {exporter!r} sends to data nodes"[:200],
            hint=f"there are {', '.join(exporters)}",
        )
    fields = {"node": node, "address": address, "component": exporter or exporters[0]}
    # All workers are asked first: one that refuses keeps the others from beginning.
    found = _ask(target, "add", plan=True, **fields)
    if not any(one["is_new"] for one in found):
        raise BadInput(
            f"{node} was added already, at {address}",
            hint="`holdfast handoff status` says how it is",
        )
    if not dry_run:
        found = _ask(target, "add", **fields)
    verb = "could be added" if dry_run else "is added"
    text = f"{node} {verb}; it gets what is accepted from now on"
    unmet = [one["problem"] for one in found if one["problem"] is not None]
    if unmet:
        text += f"\nno data node answers at {address} yet: {unmet[0]}\nwhat comes in is kept for it"
    _done(found, text, as_json)


@command.command("forget")
@click.argument("node")
@gateway_argument
@click.option(
    "--mode",
    type=click.Choice(["drop", "reassign"]),
    required=True,
    help="What waits for it is given up, or goes to those who own it without this node.",
)
@yes_option
@json_option
def forget_command(node: str, target: Target, mode: str, yes: bool, as_json: bool) -> None:
    """Remove NODE for good. Take it out of the configuration, too, or it is added anew.

    One that `add` brought is in no configuration: it is just gone.
    """
    planned = _known(_ask(target, "forget", node=node, mode=mode, plan=True), node)
    parts = sum(one["pending_parts"] for one in planned)
    waits = f"{counted(parts, 'part')}, {size(sum(one['pending_bytes'] for one in planned))}"
    if not yes:
        fate = "are given up" if mode == "drop" else "go to others, where others own them"
        ask(f"Forget {node}? {waits} that wait for it {fate}.")
    found = _ask(target, "forget", node=node, mode=mode)
    moved = sum(one["reassigned_parts"] for one in found)
    _done(found, f"{node} is forgotten; others get {counted(moved, 'part')} instead", as_json)


@command.command("rebind")
@click.argument("node")
@gateway_argument
@yes_option
@json_option
def rebind_command(node: str, target: Target, yes: bool, as_json: bool) -> None:
    """Let whoever answers under the name NODE next take the place of the former node.

    What the former one had, the new one has not: `gaps` shows it, and `repair` fetches it from
    others. What only the former one had is told first, and asked about.
    """
    planned = _known(_ask(target, "rebind", node=node, plan=True), node)
    alone = [(one["was_node_id"], *interval) for one in planned for interval in one["alone"]]
    if alone and not yes:
        rows = [(was, quiver_id, _seqs(first, end)) for was, quiver_id, first, end in alone]
        print_table("what only the former node has", ("node", "quiver", "seqs"), rows)
        ask(f"Rebind {node}?")
    found = _ask(target, "rebind", node=node)
    _done(found, f"{node} is bound to whoever answers next", as_json)


@command.command("drain")
@click.argument("node")
@gateway_argument
@click.option("--wait", is_flag=True, help="Until nothing waits for it any more.")
@json_option
def drain_command(node: str, target: Target, wait: bool, as_json: bool) -> None:
    """Place nothing new on NODE; what waits for it is still sent. Then forget it."""
    while True:
        found = _known(_ask(target, "drain", node=node), node)
        is_drained = all(one["is_drained"] for one in found)
        if is_drained or not wait:
            break
        time.sleep(POLL_S)
    parts = sum(one["pending_parts"] for one in found)
    text = "nothing waits for it" if is_drained else f"{counted(parts, 'part')} still wait for it"
    _done(found, f"{node} gets nothing new; {text}", as_json)


# --------------------------------------------------------------------- comparing


@command.command("gaps")
@gateway_argument
@node_option
@json_option
def gaps_command(target: Target, node: str | None, as_json: bool) -> int:
    """List what data nodes lack of what they should have, and who has it.

    Exits with 65 if something is missing, and with 75 if a node could not be asked.
    """
    found = _known(_ask(target, "gaps", node=node), None)
    if as_json:
        print_json(found)
    else:
        _show_gaps(found)
    return _missing(found)


@command.command("verify")
@gateway_argument
@json_option
def verify_command(target: Target, as_json: bool) -> int:
    """Compare the checksums of all parts between the data nodes and the gateway.

    Checksums are those of the parts' manifests; whether a node's disk still holds what they say,
    its own scrub finds. Exits with 3 if two differ, and with 75 if a node could not be asked.
    """
    records = list(_in_turns(target, "verify"))
    compared = sum(one["compared_parts"] for one in records if "compared_parts" in one)
    differing = [one for one in records if "checksums" in one]
    unknown = [one for one in records if "problem" in one and "checksums" not in one]
    if as_json:
        print_json({"compared_parts": compared, "differing": differing, "unknown": unknown})
    else:
        rows = [
            (
                one["part"],
                one["problem"],
                ", ".join(f"{k}: {v}" for k, v in one["checksums"].items()),
            )
            for one in differing
        ]
        if rows:
            print_table("parts that differ", ("part", "problem", "where"), rows)
        for one in unknown:
            click.echo(f"{one['node']} was not compared: {one['problem']}")
        click.echo(f"{counted(compared, 'part')} compared, {len(differing)} differ")
    return CheckFailed.exit_code if differing else Overloaded.exit_code if unknown else 0


@command.command("repair")
@gateway_argument
@node_option
@json_option
def repair_command(target: Target, node: str | None, as_json: bool) -> int:
    """Copy to data nodes what they lack, from the gateway or from another data node.

    Exits with 65 if something is still missing, and with 75 if a node could not be asked.
    """
    done = []
    for record in _in_turns(target, "repair", node=node):
        if "part" not in record:
            continue
        done.append(record)
        if not as_json:
            reason = f": {record['reason']}" if record["reason"] else ""
            source = f" from {record['source']}" if record["source"] else ""
            click.echo(f"{record['node']}  {record['part']}{source}  {record['answer']}{reason}")
    left = _ask(target, "gaps", node=node)
    if as_json:
        print_json({"repaired": done, "left": left})
    else:
        click.echo(f"{counted(len(done), 'part')} repaired or tried")
        _show_gaps(left)
    return _missing(left)


# ------------------------------------------------------------------- sync points


@command.group("syncpoint", cls=CommandGroup)
def syncpoint_group() -> None:
    """Ask whether everything that was accepted before a moment is at every data node."""


@syncpoint_group.command("create")
@gateway_argument
@json_option
def create_command(target: Target, as_json: bool) -> None:
    """Print the sync point of this moment; nothing is stored for it."""
    token = ",".join(one["token"] for one in _ask(target, "syncpoint"))
    if as_json:
        print_json({"token": token})
    else:
        click.echo(token)


@syncpoint_group.command("wait")
@click.argument("token")
@gateway_argument
@click.option("--timeout", default="60s", show_default=True, help="How long; 0s only looks.")
@json_option
def wait_command(token: str, target: Target, timeout: str, as_json: bool) -> int:
    """Wait until nothing from before TOKEN waits for any data node.

    Exits with 75 if that takes too long, and with 65 if something will never get there: it was
    dropped, or its node forgotten.
    """
    try:
        ends_s = time.monotonic() + parse_duration_s(timeout)
    except ValueError as error:
        raise BadInput(f"--timeout: {error}", hint="use 60s, or 5m") from None
    tokens = token.split(",")
    while True:
        found = _ask(target, "reached", tokens=tokens)
        if len(found) != len(tokens):
            raise BadInput(
                f"the sync point is of {len(tokens)} quivers, and {len(found)} of them are here",
                hint="create another one: quivers were restored, or workers changed",
            )
        is_reached = all(one["is_reached"] for one in found)
        if is_reached or time.monotonic() >= ends_s:
            break
        time.sleep(POLL_S)
    is_complete = all(one["is_complete"] for one in found)
    if as_json:
        print_json({"is_reached": is_reached, "is_complete": is_complete, "senders": found})
    else:
        _show_reached(found)
    return 0 if is_complete else Damaged.exit_code if is_reached else Overloaded.exit_code


def _show_reached(found: list[HandoffRecord]) -> None:
    for one in found:
        for what in ("waiting", "lost"):
            for node, ranges in one[what].items():
                seqs = ", ".join(_seqs(first, end) for first, end in ranges)
                click.echo(f"{node}  {what}: {seqs}")
        for node in one["forgotten"]:
            click.echo(f"{node}  was forgotten")
    if all(one["is_complete"] for one in found):
        click.echo("everything is at every data node")


# ----------------------------------------------------------------------- helping


def _ask(target: Target, action: str, **fields: Any) -> list[HandoffRecord]:
    answer = target.ask_gateway(VERB, timeout_s=ANSWER_S, action=action, **fields)
    if answer["left_out"]:
        click.echo(f"{answer['left_out']:,} more are left out", err=True)
    found: list[HandoffRecord] = answer["records"]
    return found


def _in_turns(target: Target, action: str, **fields: Any) -> Iterator[HandoffRecord]:
    """Yield the records of all turns of all senders, one sender after the other."""
    for sender in _ask(target, "senders"):
        which = {key: sender[key] for key in ("worker", "component", "core_id") if key in sender}
        after = None
        while True:
            first, *records = _ask(target, action, after=after, **which, **fields)
            yield first
            yield from records
            after = first["next"]
            if after is None:
                break


def _known(found: list[HandoffRecord], node: str | None) -> list[HandoffRecord]:
    """Return the records; a name that no sender knows is a mistake."""
    if node is not None and not found:
        raise BadInput(
            f"there is no data node {node!r}"[:200], hint="`holdfast handoff status` lists them"
        )
    return found


def _give_up(target: Target, action: str, yes: bool, as_json: bool, **fields: Any) -> None:
    """Say what would be lost, ask, and do it."""
    planned = _ask(target, action, plan=True, **fields)
    if not planned:
        raise BadInput(
            "nothing like that waits", hint="`holdfast handoff ls` lists what waits, and for whom"
        )
    if not yes:
        for one in planned:
            click.echo(f"{one['node']}  {one['part']}  {counted(one['events'], 'event')}", err=True)
        nodes = ", ".join(sorted({one["node"] for one in planned}))
        what = counted(len(planned), "part")
        ask(f"Give up {what}? They are lost to {nodes}.")
    found = _ask(target, action, **fields)
    lost = sum(one["is_dropped"] for one in found)
    _done(found, f"{counted(lost, 'part')} given up; `holdfast handoff gaps` names them", as_json)


def _done(found: list[HandoffRecord], text: str, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        click.echo(text)


def _state(one: HandoffRecord) -> str:
    more = [name for name in ("draining", "paused") if one[f"is_{name}"]]
    return ", ".join([one["state"], *more])


def _sender(one: HandoffRecord) -> str:
    """Return which of several senders a record is of."""
    worker = f"/{one['worker']}" if "worker" in one else ""
    return f"{one['component']}{worker}" + (f"/{one['core_id']}" if one["core_id"] else "")


def _seqs(first: int, end: int) -> str:
    return f"{first}-{end - 1}"


def _show_gaps(found: list[HandoffRecord]) -> None:
    rows = [
        (
            one["node"],
            one["quiver_id"],
            _seqs(one["first_seq"], one["end_seq"]),
            one["outcome"],
            ", ".join(one["sources"]),
            ", ".join(_seqs(first, end) for first, end in one["nowhere"]),
        )
        for one in found
        if "outcome" in one
    ]
    if rows:
        columns = ("node", "quiver", "seqs", "how", "who has it", "nobody has")
        print_table("what data nodes lack", columns, rows)
    for one in found:
        if "problem" in one:
            lost = ", ".join(f"{_seqs(first, end)} {how}" for first, end, how in one["lost"])
            known = f"; by the ledger it lost {lost}" if lost else ""
            click.echo(f"{one['node']} was not compared: {one['problem']}{known}")
    if not found:
        click.echo("no data node lacks anything")


def _missing(found: list[HandoffRecord]) -> int:
    if any("outcome" in one for one in found):
        return Damaged.exit_code
    return Overloaded.exit_code if found else 0
