"""Made-up histories: each event at each owner exactly once, or lost exactly, or held."""

from __future__ import annotations

import os
import random

import pytest
from tests.handoff.comparing import check_gaps
from tests.handoff.simulation import Network, Simulation

# Every one of them is a history of a minute of virtual time or more.
SEEDS = range(6)
MANY = range(1000, 1000 + int(os.environ.get("HOLDFAST_HISTORIES", "1500")))


def misfortune(sim: Simulation) -> None:
    """Do one thing that may happen to anybody."""
    chance = sim.random
    name = chance.choice(sim.names) if sim.names else "a"
    what = chance.choices(
        ["append", "seal", "node", "cut", "fill", "crash", "members", "expire", "tick", "operator"],
        [8, 5, 4, 3, 2, 1, 1, 1, 3, 2],
    )[0]
    sim.say(f"{what} {name}")
    if what in ("append", "seal") and sim.quiver.refusal() is not None:
        # Nobody would wait for room in made-up time; but other owners are asked, and may have it.
        sim.run(0.5)
        sim.tick()
    elif what == "append":
        sim.append(chance.randint(1, 4))
    elif what == "seal":
        sim.append(size_bytes=chance.choice([10, 300_000]))
        sim.flush()
    elif what == "node":
        node = sim.at[name]
        if node.is_up:
            node.is_up = False
        else:
            node.restart()
    elif what == "cut":
        sim.cut ^= {name}
    elif what == "fill":
        node = sim.at[name]
        node.capacity_bytes = node.used_bytes if node.capacity_bytes is None else None
    elif what == "crash":
        sim.crash(chance.choice(["kill", "power"]))
    elif what == "members":
        change_members(sim, name)
    elif what == "expire" and sim.at[name].adopted:
        sim.at[name].remove(0)
    elif what == "tick":
        sim.tick()
    elif what == "operator":
        operate(sim, name, chance)


def change_members(sim: Simulation, name: str) -> None:
    """Let nodes come and go."""
    what = sim.random.choice(["add", "forget", "reassign", "drain", "orphan", "back", "replace"])
    sim.say(f"  {what}")
    if what == "add" and len(sim.names) < 8:
        fresh = chr(ord("a") + len(sim.ever))
        sim.new_node(fresh)
        sim.names.append(fresh)
        sim.handoff.configure(sim.names)
    elif what in ("forget", "reassign") and len(sim.names) > 2:
        sim.names.remove(name)
        sim.handoff.forget(name, "drop" if what == "forget" else "reassign")
    elif what == "drain" and len(sim.names) > 2:
        sim.handoff.drain(name)
    elif what == "orphan" and len(sim.names) > 2:
        sim.names.remove(name)
        sim.handoff.configure(sim.names)
    elif what == "back":
        sim.names = sorted(sim.handoff.membership.bound)
        sim.handoff.configure(sim.names)
    elif what == "replace":
        was_met = sim.handoff.membership.bound[name].node_id is not None
        sim.at[name].is_up = False
        # Also so quickly that no probe is missed.
        sim.run(sim.random.choice([0.0, 0.1, 30.0]))
        replaced = sim.new_node(name)
        sim.run(30.0)
        assert not (was_met and replaced.history)
        sim.handoff.rebind(name)


def operate(sim: Simulation, name: str, chance: random.Random) -> None:
    """Do what operators do."""
    worker = sim.handoff.workers.get(name)
    if worker is None or worker.is_over:
        return
    what = chance.choice(["pause", "resume", "rate", "retry", "discard"])
    if what == "pause":
        worker.reader.pause()
    elif what == "resume":
        worker.reader.resume()
    elif what == "rate":
        sim.handoff.scheduler.set_rate(
            chance.choice([None, 100.0, 1e6]), chance.choice([None, name])
        )
    elif what == "retry":
        worker.retry()
    elif what == "discard" and worker.held:
        worker.discard(next(iter(worker.held)))


def history(seed: int) -> Simulation:
    """Live through one history."""
    sim = Simulation(seed)
    try:
        for _ in range(40):
            misfortune(sim)
            sim.run(sim.random.choice([0.01, 0.2, 3.0, 20.0]))
        sim.names = sorted(sim.handoff.membership.bound)
        sim.handoff.configure(sim.names)
        sim.settle()
        assert sim.problems() == []
        check_gaps(sim)
    except Exception as error:
        error.add_note(f"seed {seed}\n" + "\n".join(sim.log[-80:]))
        raise
    finally:
        sim.quiver.close()
    return sim


@pytest.mark.parametrize("seed", SEEDS)
def test_scenario_36_each_event_is_at_each_owner_exactly_once_or_lost_exactly_or_held(
    seed: int,
) -> None:
    history(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_scenario_36_thousands_of_histories() -> None:
    for seed in MANY:
        history(seed)


def clean_history() -> Simulation:
    """Return a history without mishaps, at its end."""
    sim = Simulation(3, network=Network(0, 0, 0, 0, 0))
    for _ in range(4):
        sim.append(3)
        sim.flush()
        sim.run(10.0)
    sim.settle()
    return sim


def test_a_planted_double_is_noticed() -> None:
    sim = clean_history()
    try:
        assert sim.problems() == []
        node = next(node for node in sim.at.values() if node.adopted)
        node.adopt(node.adopted[0])
        assert any("twice" in problem for problem in sim.problems())
    finally:
        sim.quiver.close()


def test_a_planted_loss_is_noticed() -> None:
    sim = clean_history()
    try:
        node = next(node for node in sim.at.values() if node.adopted)
        node.history.remove(node.adopted[0].part.id)
        assert any("there False, lost False" in problem for problem in sim.problems())
    finally:
        sim.quiver.close()


def test_a_planted_change_of_one_byte_is_noticed() -> None:
    sim = clean_history()
    try:
        node = next(node for node in sim.at.values() if node.adopted)
        node.adopted[0].files["manifest"] += b" "
        assert any("not what was sealed" in problem for problem in sim.problems())
    finally:
        sim.quiver.close()


def test_a_seed_repeats_its_history() -> None:
    logs = []
    for _ in range(2):
        sim = history(4)
        logs.append((sim.log, sim.clock.now_s, {n: len(x.history) for n, x in sim.at.items()}))
    assert logs[0] == logs[1]
