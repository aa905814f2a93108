"""What starts a server on this machine: the command line, its environment and what clears up after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.server import processes, profilers
from harness.server.spec import ServerSpec

BOOT_MARK = "WMTP_BOOT_ID"
"""Environment variable by which every process of a server is known."""


@dataclass(frozen=True)
class Launch:
    """One server start.

    Attributes:
        command: the argument list.
        variables: what its environment has besides the harness's own.
        cleanup: a command that ends the server's container when its client died; empty where none is needed.
    """

    command: list[str]
    variables: dict[str, str]
    cleanup: list[str]


def container_name(boot_id: str) -> str:
    """The name of a server's container."""
    return f"wmtp-{boot_id}"


def launch_of(
    spec: ServerSpec, port: int | str, boot_id: str, probe_directory: Path | None, home: Path | None
) -> Launch:
    """The start of a server; nothing is started or made.

    Args:
        boot_id: hex digits of this start.
        probe_directory: where the spec's probe writes.
        home: the home directory in a container.

    Raises:
        ConfigError: a variable that a container cannot be given.
    """
    command = spec.command(port)
    if spec.profiler == "nsys" and probe_directory is not None:
        command = [*profilers.nsys_words(probe_directory), *command]
    variables = {**spec.environment(probe_directory), **processes.KEEP_MARKS, BOOT_MARK: boot_id}
    if spec.container is None:
        return Launch(command, variables, [])
    container, name = spec.container.with_mounts(probe_directory), container_name(boot_id)
    return Launch(container.wrap(command, variables, name, home), variables, container.cleanup(name))
