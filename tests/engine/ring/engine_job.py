"""Runs one engine over rounds of requests, in a process of its own: `engine_job.py job.json result.json`.

A job names the model, SGLang's engine arguments and rounds of requests. All requests of a round are in flight
together; rounds follow one another. What each request returned goes into the result file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    import sglang

    job = json.loads(Path(sys.argv[1]).read_text())
    engine = sglang.Engine(**job["engine"])
    rounds = []
    try:
        for requests in job["rounds"]:
            sampling = [
                {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
                for new in requests["new_tokens"]
            ]
            replies = engine.generate(input_ids=requests["prompts"], sampling_params=sampling)
            rounds.append([{"ids": reply["output_ids"], **_facts(reply["meta_info"])} for reply in replies])
    finally:
        engine.shutdown()
    Path(sys.argv[2]).write_text(json.dumps(rounds))


def _facts(meta: dict) -> dict:
    return {
        "histogram": meta.get("spec_correct_drafts_histogram"),
        "verify_steps": meta.get("spec_verify_ct"),
        "retractions": meta.get("num_retractions"),
        "cached_tokens": meta.get("cached_tokens"),
        "latency_s": meta.get("e2e_latency"),
    }


if __name__ == "__main__":
    main()
