"""One harness a point, also on a shared file system: lock files made with O_EXCL and kept fresh.

A lock is `<results>/locks/<key>.<generation>.lock`. The highest generation counts. A lock that nobody has
refreshed for `STALE_S`, or whose process is known to be gone, is taken over by creating the next generation:
creation is exclusive, so one of several takers wins, and no file of a living owner is ever renamed or
removed by another. After creating, the taker looks again and steps back when someone else's lock is alive.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import orjson
import psutil

HEARTBEAT_S = 15.0
STALE_S = 180.0
"""Twelve missed heartbeats: longer than an NFS client caches attributes, shorter than a prefill."""


@dataclass(frozen=True)
class Owner:
    """Who holds a lock."""

    host: str
    pid: int
    started: float
    token: str

    def label(self) -> str:
        """For messages."""
        return f"process {self.pid} on {self.host}"


@lru_cache(maxsize=1)
def _host() -> str:
    """Where a process id means the same process: host, its boot, and the namespace of a container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
        parts.append(Path("/proc/self/ns/pid").readlink().name.strip("pid:[]"))
    return "/".join(parts)


def _this_process() -> Owner:
    return Owner(_host(), os.getpid(), _started(os.getpid()), secrets.token_hex(8))


def _started(pid: int) -> float:
    """When a process began, by a clock that nobody sets: a time of day shifts with the system's clock.

    Raises:
        psutil.Error: there is no such process.
    """
    try:
        # The name may hold spaces and brackets; what follows the last one is in fixed order.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return float(fields[19])
    except (OSError, IndexError, ValueError):
        return psutil.Process(pid).create_time()


@dataclass
class PointLocks:
    """The locks of one process. Use as a context manager: leaving it releases all of them.

    Args:
        results: the results directory that harnesses share.
        stale_s: seconds without a heartbeat after which a lock is taken over.
    """

    results: Path
    stale_s: float = STALE_S
    heartbeat_s: float = HEARTBEAT_S
    owner: Owner = field(default_factory=_this_process)
    _held: dict[str, Path] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def directory(self) -> Path:
        """Where the lock files lie."""
        return self.results / "locks"

    def __enter__(self) -> PointLocks:
        self._stop.clear()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="point-locks")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for key in list(self._held):
            self.release(key)

    def acquire(self, key: str) -> bool:
        """Take the lock of a point; False where a living harness holds it."""
        with self._guard:
            if key in self._held:
                return True
            self.directory.mkdir(parents=True, exist_ok=True)
            existing = self._generations(key)
            if any(self._alive(path) for path in existing.values()):
                return False
            path = self._path(key, max(existing, default=-1) + 1)
            if not _create(path, self.owner):
                return False
            others = {g: p for g, p in self._generations(key).items() if p != path}
            if any(self._alive(other) for other in others.values()):
                path.unlink(missing_ok=True)
                return False
            for other in others.values():
                other.unlink(missing_ok=True)
            self._held[key] = path
            return True

    def retake(self, key: str) -> bool:
        """`acquire` for a lock that was held and is no longer as it was left."""
        with self._guard:
            self._held.pop(key, None)
        return self.acquire(key)

    def release(self, key: str) -> None:
        """Give a lock back; nothing happens where it is not held."""
        with self._guard:
            path = self._held.pop(key, None)
            if path is not None and _read(path) == self.owner:
                path.unlink(missing_ok=True)

    def keys(self) -> list[str]:
        """Points that have a lock file, held or abandoned."""
        return sorted({path.name.split(".")[0] for path in self.directory.glob("*.lock")})

    def still_held(self, key: str) -> bool:
        """Whether the lock is ours now: a stalled process may have lost it to another."""
        path = self._held.get(key)
        if path is None or _read(path) != self.owner:
            return False
        return max(self._generations(key), default=-1) == _generation(path)

    def holder(self, key: str) -> Owner | None:
        """The living harness that holds a point's lock, if another one does."""
        for path in self._generations(key).values():
            owner = _read(path)
            if owner is not None and owner != self.owner and self._alive(path):
                return owner
        return None

    def held_by(self, key: str) -> str:
        """Who measures a point that could not be locked, as a phrase."""
        holder = self.holder(key)
        return f"{holder.label() if holder else 'another harness'} measures it"

    def _beat(self) -> None:
        while not self._stop.wait(self.heartbeat_s):
            with self._guard:
                for path in self._held.values():
                    with contextlib.suppress(OSError):
                        os.utime(path)

    def _path(self, key: str, generation: int) -> Path:
        return self.directory / f"{key}.{generation}.lock"

    def _generations(self, key: str) -> dict[int, Path]:
        return {_generation(path): path for path in self.directory.glob(f"{key}.*.lock")}

    def _alive(self, path: Path) -> bool:
        """Whether a lock's owner seems to live. Times are compared by the file system's own clock."""
        owner = _read(path)
        if owner is not None and owner.host == _host():
            return _process_lives(owner)
        try:
            age_s = self._now() - path.stat().st_mtime
        except FileNotFoundError:
            return False
        return age_s < self.stale_s

    def _now(self) -> float:
        """The file system's clock, which may differ from this host's."""
        probe = self.directory / f".clock.{self.owner.token}"
        try:
            probe.touch()
            return probe.stat().st_mtime
        except FileNotFoundError:
            return time.time()
        finally:
            probe.unlink(missing_ok=True)


def _generation(path: Path) -> int:
    text = path.name.split(".")[-2]
    return int(text) if text.isdigit() else 0


def _create(path: Path, owner: Owner) -> bool:
    body = orjson.dumps(owner.__dict__)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, body)
        os.fsync(descriptor)
    except OSError:
        # Without its owner's name a lock would keep everybody out until it is stale.
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> Owner | None:
    """The owner written in a lock; None where it is gone or not written yet."""
    try:
        return Owner(**orjson.loads(path.read_bytes()))
    except (OSError, orjson.JSONDecodeError, TypeError):
        return None


def _process_lives(owner: Owner) -> bool:
    try:
        same = abs(_started(owner.pid) - owner.started) < 2.0
        return same and psutil.Process(owner.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
