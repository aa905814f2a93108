"""What building inputs costs: `python benchmarks/inputs.py [context_tokens]` (`make bench-inputs`).

For one record of each task, with Qwen's vocabulary: CPU seconds of building it from pieces (ids included),
of the same with the whole prompt tokenised once as a check, and of the yardstick, one tokenisation of the
finished text by Hugging Face tokenizers; and the peak memory of a process that does nothing else. Then, side
by side, the way of NVIDIA/RULER's script: tokenise the whole text anew for each guess at how much fits.
Each task runs in its own process, with one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 1_040_000
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
    context = int(sys.argv[1]) if len(sys.argv) > 1 else CONTEXT_TOKENS
    with tempfile.TemporaryDirectory() as scratch:
        from benchmarks import vocabularies

        vocabularies.qwen(Path(scratch) / "qwen")
        _write_longbench(Path(scratch) / "longbench.json")
        print(f"one record of {context:,} tokens, Qwen's vocabulary; CPU seconds, one thread")
        print(
            f"{'task':22} {'build':>7} {'+check':>7} {'tokenise once':>14} {'build/once':>11} {'peak MiB':>9}"
        )
        for task in TASKS:
            row = _child(scratch, task, context)
            ratio = row["build_s"] / row["tokenise_s"] if row["tokenise_s"] else float("nan")
            print(
                f"{task:22} {row['build_s']:7.2f} {row['checked_s']:7.2f} {row['tokenise_s']:14.2f}"
                f" {ratio:11.2f} {row['peak_mib']:9.0f}",
                flush=True,
            )
        row = _child(scratch, "baseline", context)
        bisect, build, checked = row["bisect_s"], row["build_s"], row["checked_s"]
        print(
            f"re-tokenise and bisect (niah_single): {bisect:.1f} s in {row['rounds']} tokenisations,"
            f" {row['short']:,} tokens short\nfrom pieces: {build:.2f} s ({bisect / build:.0f}x less),"
            f" with the check {checked:.2f} s ({bisect / checked:.0f}x less)"
        )


def _child(scratch: str, task: str, context: int) -> dict[str, Any]:
    single = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **single}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, __file__, "--child", scratch, task, str(context)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def _write_longbench(path: Path) -> None:
    """One row of LongBench-v2's shape on a document of real code that is longer than the context."""
    sources = sorted(Path(os.__file__).parent.rglob("*.py"))
    text = "".join(
        source.read_text("utf-8", errors="ignore") for source in sources if "test" not in source.parts
    )
    choices = {f"choice_{letter}": letter for letter in "ABCD"}
    row = {
        "_id": "0",
        "domain": "Code Repository Understanding",
        "question": "Which?",
        "answer": "A",
        **choices,
    }
    path.write_text(json.dumps([{**row, "context": text[:8_000_000]}]))


def _cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    value = work()
    return time.process_time() - start, value


def _peak_mib() -> float:
    """Peak resident memory of this process (getrusage would count its parent's, too)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _measure(scratch: str, task: str, context: int) -> dict[str, Any]:
    import generators

    tokenizer = generators.Tokenizer.load(Path(scratch) / "qwen")
    params = dict(TASKS.get(task, {}))
    if "data" in params:
        params["data"] = str(Path(scratch) / params["data"])

    def build(check: bool) -> generators.Record:
        name = "niah_single" if task == "baseline" else task
        return generators.build(
            name, context_tokens=context, tokenizer=tokenizer, seed=0, check=check, **params
        )

    row: dict[str, Any] = {}
    row["build_s"], record = _cpu(lambda: build(False))
    row["peak_mib"] = _peak_mib()
    row["checked_s"], _ = _cpu(lambda: build(True))
    # The yardstick's own instance: nothing cached by the builds.
    import tokenizers

    plain = tokenizers.Tokenizer.from_file(str(Path(scratch) / "qwen" / "tokenizer.json"))
    row["tokenise_s"] = 0.0
    if record.text:
        row["tokenise_s"], ids = _cpu(lambda: plain.encode(record.text, add_special_tokens=False).ids)
        assert task in {"code_repository", "longbench_code_qa"} or ids == record.input_ids.tolist()
    if task == "baseline":
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
