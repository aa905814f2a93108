"""Whether this machine has what servers in containers are started by."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.host.commands import output_of
from harness.server.containers import Container

_TIMEOUT_S = 20.0
_DAEMON = ["docker", "version", "--format", "{{.Server.Version}}"]
_CLIENTS = {"docker": "docker", "enroot": "srun"}


def runtime_problem(kind: str) -> str:
    """What a kind of server lacks here of its runtime, with what to do; empty where nothing."""
    client = _CLIENTS.get(kind)
    if client is not None and shutil.which(client) is None:
        return f"server={kind} starts servers by {client}, which is not here: install it, or use server=local"
    if kind == "docker" and output_of(_DAEMON, _TIMEOUT_S) is None:
        return "the Docker daemon does not answer: start it, or let this user reach it (group docker)"
    return ""


def image_problem(container: Container) -> str:
    """What a container's image lacks on this machine, as a sentence; empty where nothing is known to lack."""
    image = container.image
    if container.kind == "docker":
        words = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
        if output_of(words, _TIMEOUT_S) is None:
            return f"the image {image} is not here: docker pulls it at the first start, or fails there"
    elif image.startswith(("/", ".")) and not Path(image).exists():
        return f"the image file {image} is not here: srun fails where the job's node has none either"
    return ""
