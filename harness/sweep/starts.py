"""How a boot's server would be started: by the code that starts it, with nothing started."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from harness.server.containers import container_home
from harness.server.launch import launch_of
from harness.server.runtimes import image_problem
from harness.sweep.plan import PlannedBoot, State


def start_lines(boot: PlannedBoot) -> Iterator[str]:
    """What is not a plain process here: a container's command, or a server that runs already."""
    if all(planned.state not in (State.TO_RUN, State.CANNOT_RUN) for planned in boot.points):
        return
    if boot.server.kind == "url":
        yield f"measures the server at {boot.server.url} as it is, if its arguments are those of these points"
    container = boot.spec.container
    if container is None:
        return
    # The port, the container's name and a probe's directory are drawn at the start.
    port = boot.server.port or "PORT"
    command = launch_of(boot.spec, port, "ID", None, container_home()).command
    yield f"starts {shlex.join(command)}"
    if boot.to_run and (problem := image_problem(container)):  # else its runtime is not to be asked
        yield problem
