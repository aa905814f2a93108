"""Lines a second of the scheduler-log parser, by CPU time, for the layouts of a hybrid and a plain model."""

from __future__ import annotations

import argparse
import time

from harness import schedlog

LINES = 300_000
ROUNDS = 3
HYBRID = (
    b"[2026-11-30 02:28:%02d TP0] Decode batch, #running-req: 1, #full token: %d, full token usage: 0.12, "
    b"mamba num: 3, mamba usage: 0.03, accept len: 3.00, accept rate: 0.33, cuda graph: True, "
    b"gen throughput (token/s): 62.29, #queue-req: 0\n"
)
PLAIN = (
    b"[2026-11-30 02:28:%02d] Decode batch, #running-req: 1, #token: %d, token usage: 0.12, "
    b"cuda graph: True, gen throughput (token/s): 62.29, #queue-req: 0\n"
)


def main() -> None:
    """Print the best of three rounds for each layout."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, line in (("hybrid", HYBRID), ("plain", PLAIN)):
        data = b"".join(line % (i % 60, 8000 + i) for i in range(LINES))
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.process_time()
            rows = len(schedlog.parse(data).decode)
            best = min(best, time.process_time() - began)
        print(f"{name}: {rows} of {LINES} lines, {LINES / best:,.0f} lines/s of CPU time")


if __name__ == "__main__":
    main()
