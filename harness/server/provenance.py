"""What a server runs on, where that is not the harness's own interpreter: its packages and its image."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from harness.host.commands import output_of
from harness.host.environment import PACKAGES
from harness.server.spec import ServerSpec

_LIMIT_S = 60.0
_SCRIPT = """
import importlib.metadata as metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def served_versions(spec: ServerSpec, name: str, reported: object) -> dict[str, str]:
    """Versions of the packages of the interpreter that serves; empty where it is the harness's own.

    Args:
        name: of the container, where there is one.
        reported: SGLang's version in the server's own words, which stands alone where nobody can be asked.
    """
    if spec.container is not None:
        python = spec.container.inside(name)
    elif spec.python == sys.executable:
        return {}
    else:
        python = [spec.python]
    return (_ask(python) if python else {}) or only_sglang(reported)


def only_sglang(reported: object) -> dict[str, str]:
    """The one version that a server tells of itself."""
    return {"sglang": reported} if isinstance(reported, str) and reported else {}


def image_of(spec: ServerSpec, name: str) -> dict[str, str]:
    """The container image by name and digest; empty outside containers."""
    if spec.container is None:
        return {}
    command = spec.container.image_id(name)
    digest = (output_of(command, _LIMIT_S) or "").strip() if command else ""
    return {"name": spec.container.image, **({"id": digest} if digest else {})}


def _ask(python: Sequence[str]) -> dict[str, str]:
    said = output_of([*python, "-c", _SCRIPT, *PACKAGES], _LIMIT_S)
    try:
        return {str(name): str(version) for name, version in json.loads(said or "{}").items()}
    except (ValueError, AttributeError):
        return {}
