"""Point locks: exclusive, refreshed, taken over only from the dead."""

import multiprocessing
import os
import time

import psutil

from harness.sweep.locks import Owner, PointLocks


def foreign(results, **changes):
    owner = Owner("another-host/boot/1", 1, 0.0, "token-of-another")
    return PointLocks(results, owner=owner, **changes)


def test_a_held_lock_is_refused_until_released(tmp_path):
    first, second = PointLocks(tmp_path), PointLocks(tmp_path)
    assert first.acquire("k")
    assert first.acquire("k")
    assert not second.acquire("k")
    assert second.holder("k") == first.owner
    first.release("k")
    assert second.acquire("k")


def test_another_hosts_lock_is_respected_while_fresh_and_taken_when_stale(tmp_path):
    other = foreign(tmp_path)
    assert other.acquire("k")
    mine = PointLocks(tmp_path, stale_s=60)
    assert not mine.acquire("k")
    (path,) = (tmp_path / "locks").glob("k.*.lock")
    os.utime(path, (time.time() - 120,) * 2)
    assert mine.acquire("k")
    assert not other.still_held("k")
    assert mine.still_held("k")
    other.release("k")
    assert mine.still_held("k")


def test_a_dead_process_on_this_host_is_stale_at_once(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_take, args=(tmp_path,))
    process.start()
    process.join()
    assert list((tmp_path / "locks").glob("k.*.lock"))
    assert PointLocks(tmp_path).acquire("k")


def test_a_clock_that_is_set_kills_nobody(tmp_path, monkeypatch):
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path,))
    process.start()
    try:
        while not list((tmp_path / "locks").glob("k.*.lock")):
            time.sleep(0.05)
            assert process.is_alive()
        # A time of day for the start of a process moves by as much as the clock was set.
        real = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) + 7200)
        assert not PointLocks(tmp_path).acquire("k")
    finally:
        process.kill()
        process.join()


def _hold(results):
    PointLocks(results).acquire("k")
    time.sleep(300)


def _take(results):
    PointLocks(results).acquire("k")
    os._exit(0)


def test_the_heartbeat_keeps_a_lock_fresh(tmp_path):
    with foreign(tmp_path, heartbeat_s=0.05) as other:
        other.acquire("k")
        (path,) = (tmp_path / "locks").glob("k.*.lock")
        os.utime(path, (1, 1))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not PointLocks(tmp_path, stale_s=60).acquire("k")


def test_of_many_takers_of_a_stale_lock_exactly_one_wins(tmp_path):
    other = foreign(tmp_path)
    for attempt in range(5):
        key = f"k{attempt}"
        other.acquire(key)
        (path,) = (tmp_path / "locks").glob(f"{key}.*.lock")
        os.utime(path, (1, 1))
        with multiprocessing.get_context("fork").Pool(6) as pool:
            assert sum(pool.map(_race, [(tmp_path, key)] * 6)) <= 1
        assert PointLocks(tmp_path).acquire(key)


def _race(task):
    results, key = task
    locks = PointLocks(results)
    won = locks.acquire(key)
    time.sleep(0.3)  # a winner that lived shorter would be a dead owner
    return won


def test_a_lock_killed_before_its_owner_was_written_expires(tmp_path):
    locks = PointLocks(tmp_path, stale_s=60)
    locks.directory.mkdir(parents=True)
    empty = locks.directory / "k.0.lock"
    empty.touch()
    assert not locks.acquire("k")
    os.utime(empty, (1, 1))
    assert locks.acquire("k")
