"""Runs one engine over rounds of requests, in a process of its own: `engine_job.py job.json result.json`.

A job names SGLang's engine arguments and rounds. All requests of a round are in flight together; rounds
follow one another. What each request returned goes into the result file.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    import sglang

    job = json.loads(Path(sys.argv[1]).read_text())
    engine = sglang.Engine(**job["engine"])
    try:
        rounds = [engine.loop.run_until_complete(_serve(engine, i, r)) for i, r in enumerate(job["rounds"])]
    finally:
        engine.shutdown()
    Path(sys.argv[2]).write_text(json.dumps(rounds))


async def _serve(engine: Any, number: int, requests: dict[str, Any]) -> list[dict[str, Any]]:
    names = [f"round-{number}-request-{i}" for i in range(len(requests["prompts"]))]

    async def one(name: str, prompt: list[int], new_tokens: int) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
        reply = await engine.async_generate(input_ids=prompt, sampling_params=sampling, rid=name)
        meta = reply["meta_info"]
        return {
            "ids": reply["output_ids"],
            "histogram": meta.get("spec_correct_drafts_histogram"),
            "verify_steps": meta.get("spec_verify_ct"),
            "retractions": meta.get("num_retractions"),
            "cached_tokens": meta.get("cached_tokens"),
            "latency_s": meta.get("e2e_latency"),
            "finish": (meta.get("finish_reason") or {}).get("type"),
        }

    async def abort(index: int) -> None:
        await asyncio.sleep(requests["abort_after_s"])
        engine.tokenizer_manager.abort_request(rid=names[index])

    serving = [
        asyncio.ensure_future(one(*request))
        for request in zip(names, requests["prompts"], requests["new_tokens"], strict=True)
    ]
    aborting = [asyncio.ensure_future(abort(index)) for index in requests["aborted"]]
    replies = await asyncio.gather(*serving)
    await asyncio.gather(*aborting)
    return list(replies)


if __name__ == "__main__":
    main()
