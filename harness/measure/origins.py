"""What prompts are made from that no point names: texts, word lists, the tokenizer, the generators.

A point names a text by its path. Records keep the digests beside the settings that no key names, so that a
plan tells a record of a text that was edited since.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generators.origins import WORD_LISTS, digest_of_files, file_digests, words_sha256
from generators.record import GENERATOR_VERSION
from generators.tasks import TASKS, resolve
from generators.tokenizer import tokenizer_files


def origins_of(task: str, params: Mapping[str, Any], tokenizer: Path) -> dict[str, str]:
    """What a prompt of the task is made from on this machine, by name: digests and versions.

    Args:
        tokenizer: folder of the tokenizer whose tokens count.

    Raises:
        ConfigError, InputError: the parameters make no sense, or a file is not there.
    """
    resolved = resolve(task, params)
    texts = {f"the text of {path}": digest for path, digest in file_digests(resolved).items()}
    library = TASKS[task].sources(resolved)
    return {
        **texts,
        **({"the text": library} if library else {}),
        WORD_LISTS: words_sha256(),
        "the tokenizer": digest_of_files(tokenizer_files(tokenizer)),
        "the generators' version": GENERATOR_VERSION,
    }
