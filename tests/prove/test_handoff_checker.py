"""The checker of handoff sees every kind of broken promise in real folders, and only those."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.replica.parts import CONFIG

from holdfast.handoff.owners import Owners, Placement
from holdfast.prove.handoff_checker import HandoffVerdict, NodeFolders, check_handoff
from holdfast.prove.journal import ProofJournal
from holdfast.prove.quiver_victim import names_of, payload_of
from holdfast.quiver import Quiver

NODES = ("a", "b", "c")
# Six parts of two events; two of three nodes own each block of four seqs. Which two depends on the
# quiver's id, a new one in each run: a test asks for a node that has a part, and names none.
OWNERS = Owners([Placement(0, NODES, replicas=2, block_seqs=4)])


class Story:
    """A quiver, what its clients wrote down, and the folders of three nodes that have it all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = ProofJournal(root / "0.journal")
        with Quiver.open(root / "quiver", CONFIG) as quiver:
            for number in range(12):
                self.client.sent(f"e{number}", 1)
                receipt = quiver.append_raw(payload_of(f"e{number}.0"), slot="raw")
                self.client.answered(f"e{number}", receipt.seq)
                if number % 2:
                    quiver.flush()
            self.quiver_id = quiver.quiver_id
            for place, segment in enumerate(quiver.segments()):
                owners = OWNERS.owners(self.quiver_id, 2 * place, 2 * place + 2)
                for node in owners:
                    shutil.copytree(segment.path, self.segments(node) / segment.path.name)

    def segments(self, node: str) -> Path:
        return self.root / node / "replicas" / self.quiver_id / "segments"

    def parts(self) -> dict[str, dict[str, Path]]:
        """Return the folder of each part by node and name."""
        return {
            node: {one.name: one for one in sorted(self.segments(node).glob("*"))} for node in NODES
        }

    def owner(self) -> tuple[str, list[Path]]:
        """Return the node that has most parts, which is four at least, and their folders."""
        parts = self.parts()
        node = max(NODES, key=lambda one: len(parts[one]))
        return node, list(parts[node].values())

    def verdict(self) -> HandoffVerdict:
        nodes = {name: self.root / name for name in NODES}
        return check_handoff(self.root, nodes, OWNERS, NodeFolders(names_of))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    Story(root).client.close()
    return root


@pytest.fixture
def story(whole: Path, tmp_path: Path) -> Story:
    shutil.copytree(whole, tmp_path / "story", ignore=shutil.ignore_patterns("*.sock"))
    story = Story.__new__(Story)
    story.root = tmp_path / "story"
    story.client = ProofJournal(story.root / "0.journal")
    (story.quiver_id,) = {one.name for one in story.root.glob("*/replicas/*")}
    return story


def test_what_every_owner_has_once_is_fine(story: Story) -> None:
    verdict = story.verdict()
    assert (verdict.ok, verdict.examples) == (True, [])
    assert (verdict.accepted, sum(verdict.stored.values())) == (12, 24)
    assert sum(verdict.parts.values()) == 12


def test_a_planted_loss_is_seen(story: Story) -> None:
    node, (folder, *_) = story.owner()
    shutil.rmtree(folder)
    verdict = story.verdict()
    assert (verdict.lost, verdict.applied_twice, verdict.ok) == (2, 0, False)
    assert all(text.startswith(f"{node}: lost e") for text in verdict.examples)


def test_a_planted_double_is_seen_whatever_its_folder_is_called(story: Story) -> None:
    _, (folder, *_) = story.owner()
    shutil.copytree(folder, folder.with_name("another"))
    verdict = story.verdict()
    assert (verdict.lost, verdict.applied_twice, verdict.ok) == (0, 2, False)


def test_a_double_and_a_loss_do_not_make_up_for_each_other(story: Story) -> None:
    _, (first, second, *_) = story.owner()
    shutil.copytree(first, second.with_name("another"))
    shutil.rmtree(second)
    verdict = story.verdict()
    assert (verdict.lost, verdict.applied_twice) == (2, 2)


def test_a_part_at_a_node_that_does_not_own_it_is_seen(story: Story) -> None:
    parts = story.parts()
    owner, (stray, *_) = story.owner()
    (other,) = (node for node in NODES if stray.name not in parts[node])
    assert other != owner
    shutil.copytree(stray, story.segments(other) / stray.name)
    verdict = story.verdict()
    assert (verdict.not_owned, verdict.lost, verdict.ok) == (1, 0, False)


def test_a_changed_byte_is_damage_and_a_loss(story: Story) -> None:
    _, (folder, *_) = story.owner()
    (data,) = folder.glob("*raw*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    verdict = story.verdict()
    assert (verdict.damaged_parts, verdict.lost, verdict.ok) == (1, 2, False)


def test_what_one_owner_has_the_other_must_have_although_nobody_was_answered(story: Story) -> None:
    journal = story.root / "0.journal"
    answered = journal.read_text().splitlines()
    journal.write_text("".join(f"{line}\n" for line in answered if line[0] == "S"))
    verdict = story.verdict()
    assert (verdict.ok, verdict.accepted, verdict.unanswered) == (True, 0, 12)
    shutil.rmtree(story.owner()[1][0])
    assert story.verdict().lost == 2


@pytest.mark.parametrize(
    ("old", "new", "broken"),
    [
        ("A e3 3", "E e3 no Overloaded", "resurrected"),
        ("A e3 3", "A e3 4", "misplaced"),
        ("S e3 1\nA e3 3\n", "", "invented"),
        ("S e3 1", "S e3 2", "torn_transactions"),
    ],
)
def test_what_contradicts_a_journal_is_seen(story: Story, old: str, new: str, broken: str) -> None:
    journal = story.root / "0.journal"
    journal.write_text(journal.read_text().replace(old, new))
    verdict = story.verdict()
    assert not verdict.ok
    assert getattr(verdict, broken) > 0
    assert verdict.examples
