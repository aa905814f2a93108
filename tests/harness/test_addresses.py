"""Which addresses are this machine's."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from harness.host import addresses

is_here = addresses.is_here.__wrapped__
NODE = "http://gpu-node:30000"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.9.9.9"])
def test_loopback_is_this_machine(host):
    assert is_here(f"http://{host}:30000")


def resolves_to(*found):
    return lambda *_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]


def test_its_own_addresses_are_this_machine_and_others_are_not(monkeypatch):
    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolves_to("192.0.2.7"))
    assert not is_here(NODE)
    own = {"eth0": [SimpleNamespace(address="192.0.2.7"), SimpleNamespace(address="fe80::1%eth0")]}
    monkeypatch.setattr(addresses.psutil, "net_if_addrs", lambda: own)
    assert is_here(NODE)
    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolves_to("fe80::1%eth0"))
    assert is_here(NODE)
    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolves_to("192.0.2.7", "192.0.2.8"))
    assert not is_here(NODE), "it may be the other one that answers"


def test_an_unknown_host_is_elsewhere(monkeypatch):
    def unknown(*_):
        raise socket.gaierror("no such host")

    monkeypatch.setattr(addresses.socket, "getaddrinfo", unknown)
    assert not is_here(NODE)
