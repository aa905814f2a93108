"""Whether an address is this machine's: what is measured through it runs here, or elsewhere."""

from __future__ import annotations

import socket
from functools import cache
from ipaddress import ip_address
from urllib.parse import urlsplit

import psutil


@cache
def is_here(url: str) -> bool:
    """Whether a URL's host is this machine by every address that it has; False for an unknown host.

    A port that is forwarded to another machine is one of this machine's too.
    """
    try:
        found = {_bare(info[4][0]) for info in socket.getaddrinfo(urlsplit(url).hostname, None)}
    except (OSError, ValueError):
        return False
    return all(_is_own(address) for address in found)


def _is_own(address: str) -> bool:
    known = ip_address(address)
    own = {_bare(each.address) for interface in psutil.net_if_addrs().values() for each in interface}
    return known.is_loopback or known.is_unspecified or address in own


def _bare(address: str | int) -> str:
    """An address without the interface that a link-local one is followed by."""
    return str(address).partition("%")[0]
