"""The server command inside a container: `docker run` or pyxis' `srun --container-image`.

Only argument lists are made, never shell text, so that names with spaces, quotes or semicolons stay names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.errors import ConfigError

Kind = Literal["docker", "enroot"]
KINDS: tuple[Kind, ...] = ("docker", "enroot")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Container:
    """How a server runs in a container.

    Attributes:
        kind: `docker`, or `enroot` by way of SLURM's pyxis plugin.
        image: image name as the runtime takes it.
        python: the interpreter inside the image; SGLang and this package must be installed in it.
        mounts: `host:container` pairs, or single paths that keep their place.
        arguments: further words of `docker run` or `srun`.
        gpus: whether the GPUs are passed on.

    Raises:
        ConfigError: on construction, for an unknown kind, no image, or a mount that the runtime would
            read as something else.
    """

    kind: Kind
    image: str
    python: str = "python3"
    mounts: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    gpus: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"server.kind={self.kind} is unknown: choose one of {', '.join(KINDS)}")
        if not self.image or self.image.startswith("-"):
            raise ConfigError(f"server={self.kind} needs an image, not {self.image!r}: set server.image=...")
        for mount in self.mounts:
            source, target = split_mount(mount)
            if not source.startswith("/") or not target.startswith("/"):
                raise ConfigError(f"server.mounts: {mount!r} is no absolute path or pair of them")
            # Both runtimes split mounts at commas and colons and offer no way to quote them.
            if any(sign in part for part in (source, target) for sign in ",:\n"):
                raise ConfigError(
                    f"server.mounts: {mount!r} has a comma, colon or line break in a path, which container "
                    "runtimes read as a separator: rename it or link to it"
                )

    def with_mounts(self, *paths: Path | None) -> Container:
        """The same container that also sees these host paths under their own names; None is skipped."""
        more = [str(path) for path in paths if path is not None and str(path) not in self.mounts]
        return replace(self, mounts=(*self.mounts, *more))

    def wrap(
        self, command: Sequence[str], environment: Mapping[str, str], name: str, home: Path | None = None
    ) -> list[str]:
        """The command that runs `command` inside the container.

        Args:
            environment: variables to set inside; their values travel through the runtime's own
                environment, so that they need no quoting.
            name: name of the container, letters, digits, `.`, `_` and `-`.
            home: a directory of the host that becomes the home directory inside, for Docker, whose images
                seldom know the user that runs them; None leaves what the image says.
        """
        for variable in environment:
            if not _VARIABLE.fullmatch(variable):
                raise ConfigError(f"{variable!r} is no name of an environment variable")
        inner = [self.python, *command[1:]]
        if self.kind == "docker":
            return self._docker(inner, environment, name, home)
        return self._enroot(inner, environment, name)

    def cleanup(self, name: str) -> list[str]:
        """A command that ends the container when its client died; empty where none is needed."""
        return ["docker", "rm", "--force", name] if self.kind == "docker" else []

    def inside(self, name: str) -> list[str]:
        """Words before a Python command line that run it in the running container; empty where none can."""
        return ["docker", "exec", name, self.python] if self.kind == "docker" else []

    def image_id(self, name: str) -> list[str]:
        """A command that prints the running image's digest; empty where there is none."""
        return ["docker", "inspect", "--format", "{{.Image}}", name] if self.kind == "docker" else []

    def _docker(
        self, inner: Sequence[str], environment: Mapping[str, str], name: str, home: Path | None
    ) -> list[str]:
        words = ["docker", "run", "--rm", "--init", "--name", name, "--network", "host", "--ipc", "host"]
        if self.gpus:
            words += ["--gpus", "all"]
        words += ["--user", f"{os.getuid()}:{os.getgid()}"]
        for mount in self.with_mounts(home).mounts:
            source, target = split_mount(mount)
            words += ["--mount", f"type=bind,source={source},target={target}"]
        if home is not None:
            # Without these, compilers' caches have no place and libraries that ask for a user's name fail.
            words += ["--env", f"HOME={home}", "--env", "USER=windowed-mtp"]
        for variable in sorted(environment):
            words += ["--env", variable]  # without a value: docker takes it from its own environment
        return [*words, *self.arguments, "--entrypoint", inner[0], self.image, *inner[1:]]

    def _enroot(self, inner: Sequence[str], environment: Mapping[str, str], name: str) -> list[str]:
        words = ["srun", "--ntasks=1", "--overlap", f"--job-name={name}", f"--container-image={self.image}"]
        if self.mounts:
            pairs = (":".join(split_mount(mount)) for mount in self.mounts)
            words.append(f"--container-mounts={','.join(pairs)}")
        if environment:
            # pyxis lets the image's value win for variables that are not named here.
            words.append(f"--container-env={','.join(sorted(environment))}")
        return [*words, *self.arguments, *inner]


def container_home() -> Path:
    """The home directory of containers: it outlives them, so that kernels are compiled only once."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "windowed-mtp" / "container"


def cache_home() -> Path:
    """`container_home`, made where it is not there yet.

    Raises:
        ConfigError: it cannot be made.
    """
    home = container_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"no home directory for containers can be made at {home}: {error.strerror}; set XDG_CACHE_HOME"
        ) from error
    return home


def split_mount(mount: str) -> tuple[str, str]:
    """`host:container`, or one path for both."""
    source, colon, target = mount.partition(":")
    return (source, target) if colon else (mount, mount)
