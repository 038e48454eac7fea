"""Time that a test moves, and randomness that a test repeats."""

from __future__ import annotations

import time
import uuid

from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock, RealClock
from holdfast.seam.disk import RealDisk
from holdfast.seam.randomness import random_uuid, seeded_randomness, system_randomness


def test_a_jumping_clock_stands_still_until_it_is_moved_forward_or_back() -> None:
    clock = JumpingClock(1_000_000_000)
    assert clock.wall_ns() == clock.wall_ns() == 1_000_000_000
    clock.jump(2.5)
    assert clock.wall_ns() == 3_500_000_000
    clock.jump(-10)
    assert clock.wall_ns() == -6_500_000_000, "before 1970"


def test_a_jumping_clock_never_turns_back_the_monotonic_time() -> None:
    clock = JumpingClock(0)
    before = clock.monotonic_s()
    clock.jump(-1_000_000)
    assert clock.monotonic_s() >= before


def test_the_real_clock_is_the_machines() -> None:
    before = time.time_ns()
    assert before <= RealClock().wall_ns() <= time.time_ns()
    first = RealClock().monotonic_s()
    assert RealClock().monotonic_s() >= first


def test_seeded_randomness_repeats_itself_and_system_randomness_does_not() -> None:
    assert seeded_randomness(5).randbytes(32) == seeded_randomness(5).randbytes(32)
    assert seeded_randomness(5).randbytes(32) != seeded_randomness(6).randbytes(32)
    assert system_randomness().randbytes(32) != system_randomness().randbytes(32)


def test_a_random_uuid_is_one_of_version_4_and_follows_the_seed() -> None:
    drawn = random_uuid(seeded_randomness(5))
    assert uuid.UUID(drawn).version == 4
    assert drawn == random_uuid(seeded_randomness(5)) != random_uuid(seeded_randomness(6))


def test_the_seam_is_the_real_world_unless_told_otherwise() -> None:
    seam = Seam()
    assert isinstance(seam.disk, RealDisk)
    assert isinstance(seam.clock, RealClock)
    assert seam.randomness.getrandbits(64) != Seam().randomness.getrandbits(64)
