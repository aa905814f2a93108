"""Corpora: several records of one task as a JSONL file and a manifest, built by several processes, resumable.

A corpus is named by its task, length, seed and a hash of everything that shapes it, the texts that it is made
from included, so two different ones never share a file. Each record is written on its own as soon as it is
built; a rerun goes on with the rest.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context, resource_tracker
from pathlib import Path
from typing import Any

import orjson

from generators.files import write_atomically
from generators.origins import read_digests
from generators.record import GENERATOR_VERSION, Record
from generators.task import at_least
from generators.tasks import LARGEST_CONTEXT, TASKS, build, resolve
from generators.tokenizer import Tokenizer, tokenizer_files
from harness.errors import InputError

MANIFEST_SCHEMA = 1
MOST_RECORDS = 1_000_000
READ = "read_sha256"
"""Setting that no record holds: digests of what is read besides the parameters."""


@dataclass(frozen=True)
class Request:
    """A corpus to build.

    Attributes:
        tokenizer: folder, `tokenizer.json`, `tiny` or Hub id.
        template_options: variables for the chat template.
        check: tokenise each finished prompt as a whole.
    """

    task: str
    context_tokens: int
    tokenizer: str
    seed: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    template_options: dict[str, Any] = field(default_factory=dict)
    check: bool = True

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer with the request's template options."""
        return Tokenizer.load(self.tokenizer, template_options=self.template_options)

    def settings(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Everything that shapes the records; equal settings give equal bytes.

        Raises:
            ConfigError, InputError: the parameters make no sense, or a file that they name is not there.
        """
        params = resolve(self.task, self.params)
        sources = TASKS[self.task].sources(params)
        read = read_digests(params)
        return {
            "task": self.task,
            "context_tokens": self.context_tokens,
            "seed": self.seed,
            "params": params,
            # Only where there are any: the corpora of other tasks keep their names.
            **({"sources": sources} if sources else {}),
            **({READ: read} if read else {}),
            "tokenizer_sha256": tokenizer.fingerprint,
            "generator_version": GENERATOR_VERSION,
        }


@dataclass(frozen=True)
class Corpus:
    """Where a corpus lies.

    Attributes:
        records: the JSONL file; manifest: the JSON file beside it.
        parts: folder of records that are done, while others are not.
    """

    folder: Path
    name: str

    @property
    def records(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    @property
    def manifest(self) -> Path:
        return self.folder / f"{self.name}.manifest.json"

    @property
    def parts(self) -> Path:
        return self.folder / f"{self.name}.parts"

    def part(self, index: int) -> Path:
        """The file of one record."""
        return self.parts / f"{index:06d}.json"


def corpus_of(request: Request, settings: Mapping[str, Any], folder: Path) -> Corpus:
    """The files that the corpus of a request with these settings goes to."""
    digest = hashlib.sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]
    return Corpus(folder, f"{request.task}-{request.context_tokens}-s{request.seed}-{digest}")


def build_corpus(
    request: Request,
    *,
    count: int,
    folder: Path,
    workers: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Corpus:
    """Build records 0..count-1 and write them with their manifest.

    Records that an earlier, interrupted or smaller, run left are kept.

    Args:
        workers: processes; 0 takes one for each processor.
        progress: called with the records done and wanted, once at the start and after each record.

    Raises:
        ConfigError, InputError: as `build`.
    """
    at_least("count", count, most=MOST_RECORDS)
    at_least("workers", workers, 0)
    at_least("seed", request.seed, 0)
    at_least("context_tokens", request.context_tokens, most=LARGEST_CONTEXT)
    tokenizer = request.load_tokenizer()
    settings = request.settings(tokenizer)
    corpus = corpus_of(request, settings, folder)
    kept = _sound_lines(corpus, settings)
    ready = {index for index in range(count) if index in kept or _has_part(corpus, settings, index)}
    missing = [index for index in range(count) if index not in ready]
    progress(len(ready), count)
    if len(kept) >= count and _manifest_count(corpus) == len(kept):
        return corpus
    # The joined file is written anew, from parts.
    for index, line in kept.items():
        write_atomically(corpus.part(index), line)
    for done, _ in enumerate(_build_parts(request, tokenizer, corpus, missing, workers), len(ready) + 1):
        progress(done, count)
    try:
        _finish(corpus, request, settings, max(count, len(kept)))
    except FileNotFoundError as error:
        # Another process built the same corpus here and has joined its parts: the bytes are the same.
        if not len(_sound_lines(corpus, settings)) == _manifest_count(corpus) >= count:
            raise InputError(
                f"Another process is at work on {corpus.records}. Run the same command again when it is done."
            ) from error
    return corpus


def _manifest_count(corpus: Corpus) -> int:
    """How many records the manifest lists; 0 where there is none, or a damaged one."""
    try:
        return len(orjson.loads(corpus.manifest.read_bytes())["records"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _sound_lines(corpus: Corpus, settings: Mapping[str, Any]) -> dict[int, bytes]:
    """The lines of the joined file up to the first that is damaged or not of this request."""
    found: dict[int, bytes] = {}
    if corpus.records.is_file():
        with corpus.records.open("rb") as lines:
            for index, line in enumerate(lines):
                if not _is_sound(line, settings, index):
                    break
                found[index] = line.rstrip(b"\n")
    return found


def _has_part(corpus: Corpus, settings: Mapping[str, Any], index: int) -> bool:
    part = corpus.part(index)
    return part.is_file() and _is_sound(part.read_bytes(), settings, index)


def _is_sound(line: bytes, settings: Mapping[str, Any], index: int) -> bool:
    try:
        record = Record.from_json(line)
    except InputError:
        return False
    same = all(getattr(record, name) == value for name, value in settings.items() if name != READ)
    same = same and record.index == index
    return same and record.to_json() == line.rstrip(b"\n")


def _build_parts(
    request: Request, tokenizer: Tokenizer, corpus: Corpus, missing: list[int], workers: int
) -> Iterator[int]:
    """Build the missing records, yielding each one's number when it is written."""
    workers = min(workers or os.cpu_count() or 1, len(missing))
    if workers <= 1:
        for index in missing:
            _build_part(request, tokenizer, corpus, index)
            yield index
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(request, os.getpid())
    )
    try:
        # Processes inherit that Ctrl-C is held back: until _start_worker runs it would end them.
        with _ctrl_c_held():
            jobs = [pool.submit(_work, request, corpus, index) for index in missing]
        for job in as_completed(jobs):
            yield job.result()
    except BrokenProcessPool as error:
        raise InputError(
            "A process that builds records was ended from outside, perhaps for want of memory. Finished"
            " records are kept: run the same command again, with fewer workers."
        ) from error
    finally:
        _stop(pool)


@contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """Take Ctrl-C only at the end; processes that are started meanwhile inherit that it is blocked."""
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield
        return
    taken: list[int] = []
    # The mask alone would not do: another thread, a library's, may take the signal.
    before = signal.signal(signal.SIGINT, lambda number, _: taken.append(number))
    resource_tracker.ensure_running()  # its start would unblock the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if taken:
            signal.raise_signal(signal.SIGINT)


def _stop(pool: ProcessPoolExecutor) -> None:
    """Let the processes finish the records they are at; a second Ctrl-C ends them at once."""
    try:
        pool.shutdown(wait=True, cancel_futures=True)
    except KeyboardInterrupt:
        # The pool's threads would print tracebacks about the processes that they lose.
        threading.excepthook = lambda _: None
        for process in active_children():
            process.kill()
        with _ctrl_c_held():
            pool.shutdown(wait=True)
        raise


_worker_tokenizer: Tokenizer | None = None


def _start_worker(request: Request, parent: int) -> None:
    global _worker_tokenizer  # noqa: PLW0603 (one tokenizer for each worker process)
    # The processes share the processors: none may start a thread for each.
    os.environ["RAYON_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _worker_tokenizer = request.load_tokenizer()


def _end_with(parent: int) -> None:
    """A worker whose parent was killed ends itself."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(request: Request, corpus: Corpus, index: int) -> int:
    assert _worker_tokenizer is not None  # set when the process started
    _build_part(request, _worker_tokenizer, corpus, index)
    return index


def _build_part(request: Request, tokenizer: Tokenizer, corpus: Corpus, index: int) -> None:
    record = build(
        request.task,
        context_tokens=request.context_tokens,
        tokenizer=tokenizer,
        seed=request.seed,
        index=index,
        check=request.check,
        **request.params,
    )
    # A text that is edited meanwhile would give a corpus of two texts.
    if corpus_of(request, request.settings(tokenizer), corpus.folder) != corpus:
        raise InputError(
            "A file that this corpus is made from was changed while it was read. Run the same command again"
            " when it stays as it is: a changed text is a corpus of its own."
        )
    write_atomically(corpus.part(index), record.to_json())


def _finish(corpus: Corpus, request: Request, settings: Mapping[str, Any], count: int) -> None:
    """Join the parts into the corpus file, write the manifest, keep the tokenizer beside them."""
    summaries = []
    digest = hashlib.sha256()

    def lines() -> Iterator[bytes]:
        for index in range(count):
            line = corpus.part(index).read_bytes() + b"\n"
            digest.update(line)
            summaries.append(Record.from_json(line).summary())
            yield line

    write_atomically(corpus.records, lines())
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "random_generator": "SplitMix64 (generators/rng.py)",
        "template_options": request.template_options,
        "count": count,
        "jsonl_sha256": digest.hexdigest(),
        **settings,
        "records": summaries,
    }
    keep = tokenizer_folder(corpus.folder, settings["tokenizer_sha256"])
    main, *others = tokenizer_files(request.tokenizer)
    for source, name in [(main, "tokenizer.json"), *((other, other.name) for other in others)]:
        if not (keep / name).is_file():
            write_atomically(keep / name, source.read_bytes())
    option = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write_atomically(corpus.manifest, orjson.dumps(manifest, option=option))
    for part in corpus.parts.glob("*.json"):
        part.unlink(missing_ok=True)
    with suppress(OSError):  # another process may be writing there, or have removed it
        corpus.parts.rmdir()


def tokenizer_folder(folder: Path, fingerprint: str) -> Path:
    """Where a corpus keeps the tokenizer it was built with."""
    return folder / "tokenizers" / fingerprint[:16]
