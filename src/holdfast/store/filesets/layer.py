"""A layer as it is handed around: the root of its index, its tombstones, its age."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.errors import BadInput
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.entry import message_of, ref_of
from holdfast.store.objects.objects import ChunkHash, DataRef

# Folders that one layer may take away: all of them are held in memory while it is read.
TOMBSTONES_MAX = 100_000


@dataclass(frozen=True)
class Layer:
    """One layer of a file set. It is small, can be sent anywhere, and holds no content.

    `seq` is its age within a commit, 0 before it is in one.
    """

    index: pb.Index | None
    tombstones: tuple[DataRef, ...] = ()
    num_tombstones: int = 0
    seq: int = 0

    def __post_init__(self) -> None:
        if self.num_tombstones > TOMBSTONES_MAX:
            raise BadInput(
                f"a layer cannot take away {self.num_tombstones} folders; "
                f"{TOMBSTONES_MAX} are the most",
                hint="Delete a folder above them, or write several layers.",
            )

    @property
    def root(self) -> DataRef | None:
        """The chunk at the top of the index; None if the layer only takes folders away."""
        return ref_of(self.index.data_op.data_ref[0]) if self.index else None

    @property
    def files(self) -> int:
        """Entries with content; with older layers, some of them may be one file."""
        return self.index.range.num_files if self.index else 0

    @property
    def entries(self) -> int:
        """Entries of any kind."""
        return self.index.range.num_entries if self.index else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of content."""
        return self.index.size_bytes if self.index else 0

    @property
    def chunks(self) -> list[ChunkHash]:
        """The chunks that a commit with this layer must refer to; they refer to all others."""
        root = [self.root.hash] if self.root else []
        return root + [ref.hash for ref in self.tombstones]

    def at(self, seq: int) -> Layer:
        """Return the same layer at another age."""
        return replace(self, seq=seq)

    def to_message(self) -> pb.Layer:
        """Return the layer as a commit holds it."""
        message = pb.Layer(
            seq=self.seq,
            tombstones=[message_of(ref) for ref in self.tombstones],
            num_tombstones=self.num_tombstones,
        )
        if self.index:
            message.root.CopyFrom(self.index)
            message.root.seq = self.seq
        return message

    @classmethod
    def from_message(cls, message: pb.Layer) -> Layer:
        """Return a layer that a commit holds."""
        index = None
        if message.HasField("root"):
            index = pb.Index()
            index.CopyFrom(message.root)
            index.seq = 0
        return cls(
            index, tuple(map(ref_of, message.tombstones)), message.num_tombstones, message.seq
        )

    def to_bytes(self) -> bytes:
        """Return the layer as bytes, to be sent to another process."""
        return self.to_message().SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> Layer:
        """Return a layer that came from another process."""
        return cls.from_message(pb.Layer.FromString(data))

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        # Messages cannot be pickled by themselves.
        return Layer.from_bytes, (self.to_bytes(),)
