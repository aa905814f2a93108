"""One engine of the benchmark: reads requests as JSON lines, answers each with a JSON line.

Started by `benchmarks/engine.py`: the first line holds the engine's arguments, each further one a request.
"""

from __future__ import annotations

import argparse
import json
import sys


def main() -> None:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_worker", description=__doc__)
    parser.add_argument("descriptor", type=int, help="open file descriptor that answers are written to")
    descriptor = parser.parse_args().descriptor
    import sglang

    answers = open(descriptor, "w", buffering=1)  # noqa: PTH123, SIM115
    engine = sglang.Engine(**json.loads(sys.stdin.readline()))
    answers.write("{}\n")
    try:
        for line in sys.stdin:
            request = json.loads(line)
            sampling = {"temperature": 0, "max_new_tokens": request["new_tokens"], "ignore_eos": True}
            reply = engine.generate(input_ids=request["prompt"], sampling_params=sampling)
            meta = reply["meta_info"]
            answer = {"ids": reply["output_ids"], "histogram": meta.get("spec_correct_drafts_histogram")}
            answers.write(json.dumps(answer) + "\n")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
