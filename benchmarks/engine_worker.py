"""One engine of the benchmark: reads requests as JSON lines, answers each with a JSON line."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Serve until standard input closes. Answers go to the descriptor that the first argument names."""
    import sglang

    answers = open(int(sys.argv[1]), "w", buffering=1)  # noqa: PTH123, SIM115
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
