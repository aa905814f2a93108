"""What building inputs costs: `python benchmarks/inputs.py [context_tokens]` (`make bench-inputs`).

For one record of each task, with Qwen's vocabulary: CPU seconds of building it from pieces (ids included),
of the same with the whole prompt tokenised once as a check, and of the yardstick, one tokenisation of the
finished text by Hugging Face tokenizers; and the peak memory of a process that has done nothing but load
the tokenizer and build the record. Then, side by side, the way of NVIDIA/RULER's script: tokenise the whole
text anew for each guess at how much fits. Each task runs in its own process, with one thread, build and
yardstick in turn and each with a tokenizer that has seen no text; the best of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 1_040_000
ROUNDS = 2
ROOT = Path(__file__).parents[1]
TASKS: dict[str, dict[str, Any]] = {
    "niah_single": {},
    "niah_multikey": {"haystack_kind": "needles"},
    "niah_multivalue": {},
    "niah_multiquery": {},
    "niah_multiquery_enum": {},
    "vt": {},
    "cwe": {"words": 30},
    "fwe": {},
    "fwe_enum": {},
    "code_repository": {},
    "longbench_code_qa": {"data": "longbench.json"},
    "babilong_qa1": {},
    "babilong_qa2": {},
    "babilong_qa3": {},
    "random": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "context_tokens",
        type=int,
        nargs="?",
        default=CONTEXT_TOKENS,
        help="of each record (default: %(default)s)",
    )
    context = parser.parse_args().context_tokens
    with tempfile.TemporaryDirectory() as scratch:
        from benchmarks import vocabularies

        _progress("converting Qwen's vocabulary")
        vocabularies.tokenizer_folder("qwen", Path(scratch))
        write_longbench(Path(scratch) / "longbench.json", 8_000_000)
        print(f"one record of {context:,} tokens, Qwen's vocabulary; CPU seconds, one thread")
        print(
            f"{'task':22} {'build':>7} {'+check':>7} {'tokenise once':>14} {'build/once':>11} {'peak MiB':>9}"
        )
        for number, task in enumerate(TASKS, 1):
            _progress(f"[{number}/{len(TASKS)}] {task}: {ROUNDS} rounds")
            row = _child(scratch, task, context)
            once = row["tokenise_s"] if row["tokenise_s"] < math.inf else math.nan  # random ids have no text
            print(
                f"{task:22} {row['build_s']:7.2f} {row['checked_s']:7.2f} {once:14.2f}"
                f" {row['build_s'] / once:11.2f} {row['peak_mib']:9.0f}",
                flush=True,
            )
        _progress("re-tokenising and bisecting, as NVIDIA/RULER does")
        row = _child(scratch, "baseline", context)
        bisect, build, checked = row["bisect_s"], row["build_s"], row["checked_s"]
        print(
            f"re-tokenise and bisect (niah_single): {bisect:.1f} s in {row['rounds']} tokenisations,"
            f" {row['short']:,} tokens short\nfrom pieces: {build:.2f} s ({bisect / build:.0f}x less),"
            f" with the check {checked:.2f} s ({bisect / checked:.0f}x less)"
        )


def _progress(text: str) -> None:
    """Say what takes its time; on standard error, so that standard output holds the table alone."""
    print(text, file=sys.stderr, flush=True)


def _child(scratch: str, task: str, context: int) -> dict[str, Any]:
    single = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **single}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, __file__, "--child", scratch, task, str(context)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def write_longbench(path: Path, characters: int) -> None:
    """One row of LongBench-v2's shape, on a document of so many characters of real code."""
    text = ""
    for source in sorted(Path(os.__file__).parent.rglob("*.py")):
        if len(text) < characters and "test" not in source.parts:
            text += source.read_text("utf-8", errors="ignore")
    choices = {f"choice_{letter}": f"the {letter}th" for letter in "ABCD"}
    row = {"_id": "0", "domain": "Code Repository Understanding", "question": "Which?", "answer": "C"}
    path.write_text(json.dumps([{**row, **choices, "context": text[:characters]}]), encoding="utf-8")


def _cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    value = work()
    return time.process_time() - start, value


def _peak_mib() -> float:
    """Peak resident memory of this process (getrusage would count its parent's, too)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _tokenise_once(folder: Path, text: str) -> tuple[float, list[int]]:
    import tokenizers

    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return _cpu(lambda: plain.encode(text, add_special_tokens=False).ids)


def _measure(scratch: str, task: str, context: int) -> dict[str, Any]:
    import tokenizers

    import generators

    folder = Path(scratch) / "qwen"
    params = dict(TASKS.get(task, {}))
    if "data" in params:
        params["data"] = str(Path(scratch) / params["data"])

    def build(check: bool) -> tuple[float, generators.Record]:
        tokenizer = generators.Tokenizer.load(folder)
        name = "niah_single" if task == "baseline" else task
        return _cpu(
            lambda: generators.build(
                name, context_tokens=context, tokenizer=tokenizer, seed=0, check=check, **params
            )
        )

    row: dict[str, Any] = {"build_s": math.inf, "checked_s": math.inf, "tokenise_s": math.inf}
    for number in range(ROUNDS):
        spent, record = build(False)
        if number == 0:
            row["peak_mib"] = _peak_mib()
        row["build_s"] = min(row["build_s"], spent)
        row["checked_s"] = min(row["checked_s"], build(True)[0])
        if not record.text:
            continue
        spent, ids = _tokenise_once(folder, record.text)
        row["tokenise_s"] = min(row["tokenise_s"], spent)
        # Documents may spell a special token, which is text here and an id of its own there.
        assert task in {"code_repository", "longbench_code_qa"} or ids == record.input_ids.tolist()
    if task == "baseline":
        plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        row["bisect_s"], (row["rounds"], best) = _cpu(lambda: _bisect(plain, record.text, context))
        row["short"] = context - best
    return row


def _bisect(tokenizer: Any, text: str, context: int) -> tuple[int, int]:
    """How many sentences of filler fit, found by tokenising the whole prompt for each guess."""
    head, body = text.split("Text:", 1)
    body, tail = body.rsplit("\n\nQuestion:", 1)
    pieces = body.split(". ")
    pieces += pieces[: len(pieces) // 3]
    low, high, best, rounds = 0, len(pieces), 0, 0
    while low < high:
        middle = (low + high + 1) // 2
        prompt = f"{head}Text:{'. '.join(pieces[:middle])}\n\nQuestion:{tail}"
        count = len(tokenizer.encode(prompt, add_special_tokens=False).ids)
        rounds += 1
        if count <= context:
            low, best = middle, count
        else:
            high = middle - 1
    return rounds, best


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(_measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main()
