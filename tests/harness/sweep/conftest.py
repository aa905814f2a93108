import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

STAND_IN = Path(__file__).with_name("stand_in.py")


class Sweep:
    """Command lines of the harness with a stand-in for the server."""

    def __init__(self, folder: Path) -> None:
        self.results = folder / "results"
        self.interpreter = folder / "python"
        self.interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
        self.interpreter.chmod(0o755)
        self.server: dict[str, object] = {}
        self.limit: int | None = None

    def words(self, *arguments: str) -> list[str]:
        return [
            sys.executable, "-m", "harness", "hardware=cpu", f"results={self.results}",
            f"server.python={self.interpreter}", "server.stop_timeout_s=10", *arguments,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {**os.environ, "STAND_IN": json.dumps(self.server)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*arguments),
            env=self.environment(),
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
            preexec_fn=self._limited if self.limit is not None else None,
        )

    def _limited(self) -> None:
        # EFBIG instead of a signal: Python ignores SIGXFSZ.
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.limit))

    def start(self, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                self.words(*arguments), env=self.environment(), stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)
