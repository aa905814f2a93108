"""Train the tiny hybrid and its draft layer: `python -m harness.engine.tiny.train --out FOLDER`.

A fixed number of steps on seeded data: the same command gives the same checkpoint with the same number of
threads, torch build and processor type. First the trunk learns to copy and recall in short rows, then rows
grow; the draft layer joins on the way. A second pass drills lists, a third trains the draft layer alone,
on a trunk that no longer moves.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

# Idle OpenMP threads that spin would slow every other process down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from tokenizers import Tokenizer

from harness.engine.tiny.batches import DRILL_ROW, SHORT_ROW, Batches
from harness.engine.tiny.config import TinyConfig
from harness.engine.tiny.corpus import tokenizer_texts
from harness.engine.tiny.evaluate import draft_agreement, retrieval_scores
from harness.engine.tiny.export import read_model, weights, write_model
from harness.engine.tiny.initialise import initialise
from harness.engine.tiny.losses import Batch, draft_loss, trunk_loss
from harness.engine.tiny.model import TinyHybrid
from harness.engine.tiny.optimiser import Optimiser
from harness.engine.tiny.tokenizer import (
    END_OF_TEXT,
    SPECIAL_TOKENS,
    TURN_END,
    train_tokenizer,
    write_tokenizer,
)


@dataclass(frozen=True)
class Plan:
    """Length and phases of a training run; phases are shares of all steps.

    Attributes:
        steps: optimiser steps that the shares refer to.
        stop: leave off after this many steps.
        seed: of weights, corpus and sampling.
        short_until: rows are short before this.
        draft_from: the draft layer trains (every second step) from here.
        trunk_until: the trunk trains until here; afterwards the draft layer alone.
        draft_steps: recursive draft steps trained.
        chains: draft chains a row.
        prompt_weight: weight of a prompt token's loss beside an answer token's.
        vocab_size, tokenizer_texts: of the tokenizer.
        tokens_per_step: tokens a batch of long rows.
        evaluate_every: steps between reports (each writes the checkpoint as it is); 0 for none.
        drills: alternate rows of list drills with long rows, instead of letting rows grow.
        peak_rate: scale of all learning rates.
        stories_percent: share of documents that are replaced by stories.
    """

    steps: int = 700
    stop: int | None = None
    seed: int = 0
    short_until: float = 0.30
    draft_from: float = 0.35
    trunk_until: float = 0.78
    draft_steps: int = 6
    chains: int = 96
    prompt_weight: float = 0.05
    vocab_size: int = 3072
    tokenizer_texts: int = 1500
    tokens_per_step: int = 4096
    evaluate_every: int = 50
    drills: bool = False
    peak_rate: float = 1.0
    stories_percent: int = 0

    def row_tokens(self, step: int) -> int:
        """Row length at a step: short, then 512, 1024, 2048, with short rows mixed in throughout."""
        if self.drills:
            return (DRILL_ROW, 1024, DRILL_ROW, (512, 2048)[step // 4 % 2])[step % 4]
        done = step / self.steps
        if done < self.short_until:
            return 384 if done > self.short_until / 2 and step % 3 == 0 else SHORT_ROW
        if step % 6 == 0:
            return SHORT_ROW
        if done < self.short_until + 0.12:
            return 512
        if done < 0.62:
            return 1024 if step % 3 else 512
        return (512, 1024, 2048)[step % 3]


# The first pass learns to look back, the second to go through a list of keys in order; the third is the draft
# layer's alone.
PASSES = (
    Plan(steps=700, stop=450),
    Plan(steps=480, draft_from=0.3, trunk_until=0.75, drills=True, peak_rate=0.8),
    Plan(steps=400, draft_from=0.0, trunk_until=0.0, drills=True, chains=128, stories_percent=25),
)


def rate(done: float, start: float, stop: float, falling: float = 0.45) -> float:
    """Learning-rate scale at share `done`: short warm-up from `start`, flat, then linear to near zero."""
    share = (done - start) / (stop - start)
    warm_up = max(0.05, share / 0.02)
    fall = max(0.02, (1 - share) / falling)
    return min(1.0, warm_up, fall)


class Training:
    """A run's model, optimisers and data."""

    def __init__(self, plan: Plan, config: TinyConfig, batches: Batches) -> None:
        self.plan, self.batches = plan, batches
        self.model = TinyHybrid(config)
        initialise(self.model, plan.seed)
        named = list(self.model.named_parameters())
        self.trunk = Optimiser((n, p) for n, p in named if not n.startswith("mtp."))
        self.draft = Optimiser((n, p) for n, p in named if n.startswith("mtp."))
        self._random = torch.Generator().manual_seed(plan.seed)

    def step(self, number: int) -> tuple[float, float]:
        """One step; returns the trunk's and the draft's loss, NaN where one did not train."""
        plan, done = self.plan, number / self.plan.steps
        batch = self.batches.batch(number, plan.row_tokens(number))
        trunk_value = draft_value = math.nan
        if done < plan.trunk_until:
            states, trunk_value = self._trunk_step(batch, plan.peak_rate * rate(done, 0, plan.trunk_until))
        else:
            with torch.no_grad():
                states = self.model.states(batch.ids[:, :-1], batch.positions[:, :-1])
        if done >= plan.trunk_until or (done >= plan.draft_from and number % 2 == 0):
            loss, _ = draft_loss(
                self.model, batch, states.detach(), plan.draft_steps, plan.chains, self._random
            )
            loss.backward()
            self.draft.step(plan.peak_rate * rate(done, plan.draft_from, 1.0))
            draft_value = float(loss.detach())
        return trunk_value, draft_value

    def _trunk_step(self, batch: Batch, scale: float) -> tuple[torch.Tensor, float]:
        states = self.model.states(batch.ids[:, :-1], batch.positions[:, :-1])
        loss = trunk_loss(self.model, batch, states, self.plan.prompt_weight, self._random)
        loss.backward()
        self.trunk.step(scale)
        return states, float(loss.detach())


def train(plan: Plan, shape: TinyConfig, out: Path, start: Path | None = None) -> TinyHybrid:
    """Train by `plan` and write the checkpoint to `out`; the tokenizer sets the vocabulary's size.

    Args:
        plan: length and phases.
        shape: of the model; its vocabulary is replaced.
        out: the checkpoint's folder.
        start: checkpoint to go on from, tokenizer included; None to begin with nothing.
    """
    out.mkdir(parents=True, exist_ok=True)
    wall, cpu = time.monotonic(), time.process_time()
    tokenizer = (
        Tokenizer.from_file(str(start / "tokenizer.json"))
        if start
        else train_tokenizer(tokenizer_texts(plan.seed, plan.tokenizer_texts), plan.vocab_size)
    )
    write_tokenizer(tokenizer, out, shape.max_position_embeddings)
    config = replace(shape, vocab_size=math.ceil(tokenizer.get_vocab_size() / 64) * 64)
    batches = Batches(tokenizer, plan.seed, plan.tokens_per_step, plan.drills, plan.stories_percent)
    run = Training(plan, config, batches)
    if start is not None:
        run.model.load_state_dict(read_model(start).state_dict())
    count = sum(p.numel() for p in run.model.parameters())
    _say(f"{count:,} parameters, vocabulary {config.vocab_size}, {torch.get_num_threads()} threads")
    for number in range(plan.stop or plan.steps):
        losses = run.step(number)
        if plan.evaluate_every and (number + 1) % plan.evaluate_every == 0:
            spent = f"wall {time.monotonic() - wall:.0f} s  cpu {time.process_time() - cpu:.0f} s"
            _write(run.model, out)
            _say(f"step {number + 1}/{plan.steps}  {spent}  {_progress(run.model, tokenizer, losses)}")
    _write(run.model, out)
    _say(f"done: wall {time.monotonic() - wall:.0f} s, cpu {time.process_time() - cpu:.0f} s")
    return run.model


def _write(model: TinyHybrid, out: Path) -> None:
    write_model(
        model.config, weights(model, "bfloat16"), out, dtype="bfloat16",
        bos_id=SPECIAL_TOKENS.index(END_OF_TEXT), eos_id=SPECIAL_TOKENS.index(TURN_END),
    )  # fmt: skip


def _progress(model: TinyHybrid, tokenizer: Tokenizer, losses: tuple[float, float]) -> str:
    digits = [retrieval_scores(model, tokenizer, n, 4, free=False).digits for n in (200, 512, 1024)]
    agreement = draft_agreement(model, tokenizer)
    return (
        f"loss {losses[0]:.3f} draft {losses[1]:.3f}  digits at 200/512/1024: "
        f"{' '.join(f'{x:.2f}' for x in digits)}  draft agreement {' '.join(f'{x:.2f}' for x in agreement)}"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    start = None
    for number, plan in enumerate(PASSES):
        train(replace(plan, seed=options.seed + number), TinyConfig(), options.out, start)
        start = options.out
    return 0


if __name__ == "__main__":
    sys.exit(main())
