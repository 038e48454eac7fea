# Written by scripts/make_protobuf.py from docs/format/fileset.proto.
# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPEND: _ClassVar[Op]
    OVERWRITE: _ClassVar[Op]
    DELETE: _ClassVar[Op]
APPEND: Op
OVERWRITE: Op
DELETE: Op

class Index(_message.Message):
    __slots__ = ("path", "range", "data_op", "size_bytes", "seq", "present", "metadata")
    PATH_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    DATA_OP_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    path: str
    range: Range
    data_op: DataOp
    size_bytes: int
    seq: int
    present: bool
    metadata: Metadata
    def __init__(self, path: _Optional[str] = ..., range: _Optional[_Union[Range, _Mapping]] = ..., data_op: _Optional[_Union[DataOp, _Mapping]] = ..., size_bytes: _Optional[int] = ..., seq: _Optional[int] = ..., present: _Optional[bool] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("last_path", "num_files", "num_entries", "level", "bloom", "plain")
    LAST_PATH_FIELD_NUMBER: _ClassVar[int]
    NUM_FILES_FIELD_NUMBER: _ClassVar[int]
    NUM_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    BLOOM_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    last_path: str
    num_files: int
    num_entries: int
    level: int
    bloom: bytes
    plain: bool
    def __init__(self, last_path: _Optional[str] = ..., num_files: _Optional[int] = ..., num_entries: _Optional[int] = ..., level: _Optional[int] = ..., bloom: _Optional[bytes] = ..., plain: _Optional[bool] = ...) -> None: ...

class DataOp(_message.Message):
    __slots__ = ("data_ref", "op", "tags")
    DATA_REF_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    data_ref: _containers.RepeatedCompositeFieldContainer[DataRef]
    op: Op
    tags: _containers.RepeatedCompositeFieldContainer[Tag]
    def __init__(self, data_ref: _Optional[_Iterable[_Union[DataRef, _Mapping]]] = ..., op: _Optional[_Union[Op, str]] = ..., tags: _Optional[_Iterable[_Union[Tag, _Mapping]]] = ...) -> None: ...

class Tag(_message.Message):
    __slots__ = ("id", "size_bytes", "set", "deleted")
    ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    size_bytes: int
    set: bool
    deleted: bool
    def __init__(self, id: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., set: _Optional[bool] = ..., deleted: _Optional[bool] = ...) -> None: ...

class DataRef(_message.Message):
    __slots__ = ("chunk", "hash", "offset_bytes", "size_bytes", "indirect")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDIRECT_FIELD_NUMBER: _ClassVar[int]
    chunk: Chunk
    hash: bytes
    offset_bytes: int
    size_bytes: int
    indirect: bool
    def __init__(self, chunk: _Optional[_Union[Chunk, _Mapping]] = ..., hash: _Optional[bytes] = ..., offset_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ..., indirect: _Optional[bool] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("hash",)
    HASH_FIELD_NUMBER: _ClassVar[int]
    hash: bytes
    def __init__(self, hash: _Optional[bytes] = ...) -> None: ...

class DataRefs(_message.Message):
    __slots__ = ("data_ref",)
    DATA_REF_FIELD_NUMBER: _ClassVar[int]
    data_ref: _containers.RepeatedCompositeFieldContainer[DataRef]
    def __init__(self, data_ref: _Optional[_Iterable[_Union[DataRef, _Mapping]]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("mode", "mtime_ns", "link_target", "uid", "gid", "user", "group", "xattrs", "hard_link", "sparse")
    MODE_FIELD_NUMBER: _ClassVar[int]
    MTIME_NS_FIELD_NUMBER: _ClassVar[int]
    LINK_TARGET_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    XATTRS_FIELD_NUMBER: _ClassVar[int]
    HARD_LINK_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    mode: int
    mtime_ns: int
    link_target: str
    uid: int
    gid: int
    user: str
    group: str
    xattrs: _containers.RepeatedCompositeFieldContainer[Xattr]
    hard_link: str
    sparse: bool
    def __init__(self, mode: _Optional[int] = ..., mtime_ns: _Optional[int] = ..., link_target: _Optional[str] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ..., user: _Optional[str] = ..., group: _Optional[str] = ..., xattrs: _Optional[_Iterable[_Union[Xattr, _Mapping]]] = ..., hard_link: _Optional[str] = ..., sparse: _Optional[bool] = ...) -> None: ...

class Xattr(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: bytes
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class CommitRecord(_message.Message):
    __slots__ = ("version", "name", "parent", "message", "created_ns", "batch_records", "layers", "seen")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    BATCH_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    name: str
    parent: Parent
    message: str
    created_ns: int
    batch_records: _containers.RepeatedCompositeFieldContainer[BatchRecord]
    layers: _containers.RepeatedCompositeFieldContainer[Layer]
    seen: _containers.RepeatedCompositeFieldContainer[DataRef]
    def __init__(self, version: _Optional[int] = ..., name: _Optional[str] = ..., parent: _Optional[_Union[Parent, _Mapping]] = ..., message: _Optional[str] = ..., created_ns: _Optional[int] = ..., batch_records: _Optional[_Iterable[_Union[BatchRecord, _Mapping]]] = ..., layers: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ..., seen: _Optional[_Iterable[_Union[DataRef, _Mapping]]] = ...) -> None: ...

class Parent(_message.Message):
    __slots__ = ("name", "id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class BatchRecord(_message.Message):
    __slots__ = ("sink", "record")
    SINK_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    sink: str
    record: bytes
    def __init__(self, sink: _Optional[str] = ..., record: _Optional[bytes] = ...) -> None: ...

class Layer(_message.Message):
    __slots__ = ("root", "seq", "tombstones", "num_tombstones")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    root: Index
    seq: int
    tombstones: _containers.RepeatedCompositeFieldContainer[DataRef]
    num_tombstones: int
    def __init__(self, root: _Optional[_Union[Index, _Mapping]] = ..., seq: _Optional[int] = ..., tombstones: _Optional[_Iterable[_Union[DataRef, _Mapping]]] = ..., num_tombstones: _Optional[int] = ...) -> None: ...
