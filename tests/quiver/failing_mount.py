"""python failing_mount.py ROOT MOUNT CONTROL: a file system that passes everything to a folder.

The file CONTROL holds "name offset length" of what cannot be read (EIO). Nothing is cached by the
kernel: each read comes here.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

from fuse import FUSE, FuseOSError, Operations  # type: ignore[import-not-found]


class Failing(Operations):  # type: ignore[misc]
    def __init__(self, root: str, control: Path) -> None:
        self._root = root
        self._control = control

    def __call__(self, op: str, path: str, *args: Any) -> Any:
        if not hasattr(self, op):
            raise FuseOSError(errno.ENOSYS)
        return getattr(self, op)(self._root + path, *args)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(path)
        return {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}

    def statfs(self, path: str) -> dict[str, Any]:
        found = os.statvfs(path)
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(path)]

    def rename(self, path: str, new: str) -> None:
        os.rename(path, self._root + new)

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags & ~os.O_APPEND)

    def create(self, path: str, mode: int, fi: object = None) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        if self._control.exists():
            name, first, length = self._control.read_text().split()
            start, end = int(first), int(first) + int(length)
            if path.endswith(name) and offset < end and start < offset + size:
                raise FuseOSError(errno.EIO)
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(path, length)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        os.fsync(fh)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(path, mode)

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        return 0

    def flush(self, path: str, fh: int) -> int:
        return 0

    def access(self, path: str, mode: int) -> int:
        return 0

    def opendir(self, path: str) -> int:
        return 0

    def releasedir(self, path: str, fh: int) -> int:
        return 0

    def init(self, path: str) -> None:
        pass

    def destroy(self, path: str) -> None:
        pass


if __name__ == "__main__":
    served = Failing(sys.argv[1], Path(sys.argv[3]))
    FUSE(served, sys.argv[2], foreground=True, nothreads=True, direct_io=True)
