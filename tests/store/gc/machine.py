"""A machine that does anything in any order to a store, and checks all invariants after each step.

Writers, readers and collectors that die at named moments, requests that land late, a clock that
jumps, several collectors. At the end everything comes to rest, and exactly what commits lead to is
left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.store.gc.stage import LEASE_S, SETTINGS, Died, Stage, staged

from holdfast.errors import ChunkGone, CommitExists, LeaseLost, StoreUnavailable, UnknownCommit
from holdfast.store.gc.commit_rows import commit_object_key
from holdfast.store.gc.leases import CommitPin, Job
from holdfast.store.gc.limits import Shard
from holdfast.store.objects.objects import ChunkHash, hash_of

# Few names, so that writers meet. A chunk's children are those its name says: content decides them.
LEAVES = [b"leaf %d" % number for number in range(4)]
BRANCHES = {b"branch %d" % number: LEAVES[number : number + 2] for number in range(3)}
ROOTS = {
    b"root %d" % number: [*list(BRANCHES)[number : number + 2], LEAVES[0]] for number in range(2)
}
TREE: dict[bytes, list[bytes]] = {**{leaf: [] for leaf in LEAVES}, **BRANCHES, **ROOTS}
COMMITS = ["x", "y"]
JOBS = 3
WHICH = st.integers(0, JOBS - 1)


class StoreMachine(RuleBasedStateMachine):
    """Everything that can happen to a store."""

    new_url: Callable[[], AbstractContextManager[str]]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.jobs: list[Job] = []
        self.pins: list[CommitPin] = []
        self.stage: Stage

    @initialize(batch_rows=st.sampled_from([1, 2, 1000]), batch_edges=st.sampled_from([1, 1000]))
    def begin(self, batch_rows: int, batch_edges: int) -> None:
        bounded = replace(
            SETTINGS, batch_rows=batch_rows, batch_edges=batch_edges, delete_objects=3
        )
        url = self.stack.enter_context(type(self).new_url())
        self.stage = self.stack.enter_context(staged(url, bounded))
        self.jobs = [self.stage.references.open_job(f"job {number}") for number in range(JOBS)]

    # Writers.

    @rule(
        which=WHICH,
        name=st.sampled_from(list(TREE)),
        put=st.sampled_from(["lands", "late", "never"]),
        dies=st.booleans(),
    )
    def write(self, which: int, name: bytes, put: str, dies: bool) -> None:
        """Reserve a chunk, put it, mark it; or stop in between."""
        job = self.jobs[which]
        references = self.stage.references
        try:
            (reserved,) = references.reserve_chunks(job, [(hash_of(name), len(name))])
            if not reserved.needs_upload:
                assert self.stage.has(reserved.key.hash), "trusted, and not there"
                return
            key = reserved.key.object_key()
            if put == "lands":
                self.stage.objects.put_many([(key, [name])])
            elif put == "late":
                self.stage.objects.late.append(("put", key, name))
            if put != "lands" or dies:
                return
            children = [hash_of(child) for child in TREE[name]]
            (kept,) = references.mark_uploaded(job, [(reserved.key, children)])
            assert references.mark_uploaded(job, [(reserved.key, children)]) == [kept]
        except (LeaseLost, ChunkGone):
            pass

    @rule(which=WHICH, root=st.sampled_from(list(ROOTS)), name=st.sampled_from(COMMITS))
    def write_tree(self, which: int, root: bytes, name: str) -> None:
        """Store a tree, leaves first, and publish it; the whole of a writer's work."""
        job = self.jobs[which]
        try:
            for branch in [*TREE[root], root]:
                for chunk in [*TREE[branch], branch] if branch != root else [root]:
                    self.stage.upload(job, chunk, [hash_of(child) for child in TREE[chunk]])
            self.publish(which, name, root, until=2)
        except (LeaseLost, ChunkGone):
            pass

    @rule(name=st.sampled_from(LEAVES), one=WHICH, other=WHICH)
    def meet(self, name: bytes, one: int, other: int) -> None:
        """Let two writers store one chunk at once."""
        references = self.stage.references
        jobs = [self.jobs[one], self.jobs[other]]
        wanted = [(hash_of(name), len(name))]
        try:
            given = [references.reserve_chunks(job, wanted)[0].key for job in jobs]
            self.stage.objects.put_many([(key.object_key(), [name]) for key in given])
            for job, key in zip(jobs, given, strict=True):
                references.mark_uploaded(job, [(key, [])])
        except (LeaseLost, ChunkGone):
            pass

    @rule(which=WHICH)
    def mark_what_is_stored(self, which: int) -> None:
        """A writer that stalled goes on: it says of everything stored that it is uploaded."""
        job = self.jobs[which]
        names = {hash_of(name): name for name in TREE}
        try:
            for name in TREE:
                (reserved,) = self.stage.references.reserve_chunks(
                    job, [(hash_of(name), len(name))]
                )
                if reserved.key.object_key() in self.stage.objects.stored:
                    children = [hash_of(c) for c in TREE[names[reserved.key.hash]]]
                    self.stage.references.mark_uploaded(job, [(reserved.key, children)])
        except (LeaseLost, ChunkGone):
            pass

    @rule(
        which=WHICH,
        name=st.sampled_from(COMMITS),
        root=st.sampled_from(list(TREE)),
        until=st.integers(0, 2),
    )
    def publish(self, which: int, name: str, root: bytes, until: int) -> None:
        job = self.jobs[which]
        references = self.stage.references
        record = root
        try:
            number = references.publish_commit(job, name, record, [hash_of(root)])
            if until > 0:
                self.stage.objects.put_many([(commit_object_key(name, number), [record])])
            if until > 1:
                references.confirm_commit(number)
        except (LeaseLost, ChunkGone, CommitExists):
            pass

    @rule(name=st.sampled_from(COMMITS), until=st.integers(0, 2))
    def delete(self, name: str, until: int) -> None:
        try:
            number = self.stage.references.begin_delete_commit(name)
        except UnknownCommit:
            return
        if until > 0:
            self.stage.objects.stored.pop(commit_object_key(name, number), None)
        if until > 1:
            self.stage.references.end_delete_commit(number)

    @rule(
        name=st.sampled_from([b"1", b"2"]),
        root=st.sampled_from(list(TREE)),
        add=st.booleans(),
    )
    def note(self, name: bytes, root: bytes, add: bool) -> None:
        """The seed's own call, with sources of the user's."""
        given = [(("note", name), hash_of(root))]
        try:
            for _ in range(2):
                self.stage.references.update_references(
                    None, given if add else [], [] if add else given
                )
        except ChunkGone:
            assert not self._is_there(hash_of(root))

    def _is_there(self, hash_: ChunkHash) -> bool:
        return hash_ in self.stage.references.resolve([hash_])

    @rule(which=WHICH, closes=st.booleans())
    def begin_again(self, which: int, closes: bool) -> None:
        """A writer ends its job, or dies, and begins another."""
        if closes:
            self.jobs[which].close()
        self.jobs[which] = self.stage.references.open_job("again")

    # Readers.

    @precondition(lambda self: len(self.pins) < 2)
    @rule(name=st.sampled_from(COMMITS))
    def pin(self, name: str) -> None:
        with suppress(UnknownCommit):
            self.pins.append(self.stage.references.pin(name))

    @precondition(lambda self: self.pins)
    @rule(which=st.integers(0, 1))
    def release_pin(self, which: int) -> None:
        self.pins.pop(which % len(self.pins)).release()

    # Time, late requests, collectors.

    @rule(seconds=st.sampled_from([1.0, LEASE_S + 1, 3 * LEASE_S, -LEASE_S]))
    def jump(self, seconds: float) -> None:
        self.stage.jump(seconds)

    @rule(seconds=st.sampled_from([LEASE_S / 3, LEASE_S + 1]))
    def renew(self, seconds: float) -> None:
        """Time passes, and the leases that nobody has ended are renewed."""
        self.stage.jump(seconds)
        self.stage.references.renew_leases()

    @precondition(lambda self: self.stage.objects.late)
    @rule(which=st.integers(0, 9))
    def land(self, which: int) -> None:
        self.stage.objects.land(which % len(self.stage.objects.late))

    @rule(
        dies_after=st.none() | st.integers(0, 12),
        deletes_time_out=st.booleans(),
        shard=st.sampled_from([Shard(), Shard(), Shard(0, 2), Shard(1, 2)]),
    )
    def collect(self, dies_after: int | None, deletes_time_out: bool, shard: Shard) -> None:
        stage = self.stage
        stage.objects.deletes_time_out = deletes_time_out
        stage.dying.die_at = None if dies_after is None else len(stage.dying.reached) + dies_after
        try:
            stage.collector(shard).collect()
        except (Died, StoreUnavailable):
            pass
        finally:
            stage.objects.deletes_time_out = False
            stage.dying.die_at = None

    @rule(age_s=st.sampled_from([0.0, SETTINGS.orphan_grace_s + 1]))
    def sweep(self, age_s: float) -> None:
        self.stage.objects.clock_s += age_s
        self.stage.collector().sweep()

    # What must be true.

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "stage"):
            self.stage.check()
            for row in self.stage.references.commits():
                assert self.stage.has(hash_of(row.record)), "I8: a commit's root is gone"

    def teardown(self) -> None:
        with self.stack:
            if hasattr(self, "stage"):
                for name in (b"1", b"2"):
                    every = [(("note", name), hash_of(root)) for root in TREE]
                    self.stage.references.update_references(None, (), every)
                # Twice: what lands late after the first is swept by the second.
                self.stage.come_to_rest()
                self.stage.come_to_rest()
                self.stage.check_at_rest()
