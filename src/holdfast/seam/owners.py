"""Names of users and groups on this machine, and their numbers; each is asked for once."""

from __future__ import annotations

import functools
import grp
import os
import pwd


def is_root() -> bool:
    """Whether this process may give files to others."""
    return os.geteuid() == 0


@functools.cache
def user_name(uid: int) -> str | None:
    """Return the name of a user; None if this machine knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


@functools.cache
def group_name(gid: int) -> str | None:
    """Return the name of a group; None if this machine knows none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return None


@functools.cache
def user_number(name: str) -> int | None:
    """Return the number of a user; None if this machine has no such user."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


@functools.cache
def group_number(name: str) -> int | None:
    """Return the number of a group; None if this machine has no such group."""
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        return None
