"""What the tiny model gets right, with plain torch: retrieval and draft agreement.

`python -m harness.engine.tiny.evaluate [FOLDER]` prints both as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from generators.rng import Stream
from harness.engine.tiny import checkpoint_path
from harness.engine.tiny.batches import Batches, encode
from harness.engine.tiny.corpus import Document, retrieval
from harness.engine.tiny.export import read_model
from harness.engine.tiny.losses import Batch, draft_loss
from harness.engine.tiny.model import TinyHybrid
from harness.engine.tiny.tokenizer import TURN_END

# Rough prompt tokens -> filler sentences, needles, keys asked for.
SETTINGS = {200: (1, 3, 2), 512: (10, 6, 5), 1024: (42, 8, 8), 2048: (110, 8, 8)}


@dataclass(frozen=True)
class Retrieval:
    """Scores over some prompts of about one length.

    Attributes:
        prompt_tokens: mean prompt length.
        digits: share of answer digits predicted right, given the right text before (chance: 0.1).
        values: share of asked lines (key and value) that stand in the free greedy answer; NaN if not run.
        ended: share of free answers that end their turn within 1.5 times the ideal length; NaN if not run.
    """

    prompt_tokens: float
    digits: float
    values: float
    ended: float


def held_out(setting: int, index: int) -> Document:
    """Evaluation prompt `index` of about `setting` tokens: a numbered list of keys with their numbers."""
    filler, needles, asked = SETTINGS[setting]
    return retrieval(Stream("tiny-held-out", setting, index), filler, needles, asked, form="enum")


@torch.no_grad()
def greedy(model: TinyHybrid, prompt: list[int], most: int, stop: int) -> list[int]:
    """Greedy continuation of up to `most` tokens, the whole text anew for each."""
    ids = list(prompt)
    while len(ids) < len(prompt) + most:
        ids.append(int(model.lm_head(model.states(torch.tensor([ids]))[0, -1]).argmax()))
        if ids[-1] == stop:
            break
    return ids[len(prompt) :]


@torch.no_grad()
def retrieval_scores(
    model: TinyHybrid, tokenizer: Tokenizer, setting: int, prompts: int, *, free: bool = True
) -> Retrieval:
    """Scores on `prompts` held-out prompts; `free` adds free running, which takes far longer."""
    stop = tokenizer.token_to_id(TURN_END)
    digit_ids = [i for i in range(tokenizer.get_vocab_size()) if tokenizer.decode([i]).isdigit()]
    is_digit = torch.zeros(model.config.vocab_size, dtype=torch.bool)
    is_digit[digit_ids] = True
    right = digits = found = asked = ended = length = 0
    for index in range(prompts):
        made = held_out(setting, index)
        prompt, answer = encode(tokenizer, made)
        length += len(prompt)
        ids = torch.tensor([prompt + answer])
        best = model.lm_head(model.states(ids)[0, len(prompt) - 1 : -1]).argmax(-1)
        target = ids[0, len(prompt) :]
        mask = is_digit[target]
        right += int(((best == target) & mask).sum())
        digits += int(mask.sum())
        if free:
            reply = greedy(model, prompt, len(answer) * 3 // 2, stop)
            ended += reply[-1] == stop
            lines = {line.strip() for line in tokenizer.decode(reply).splitlines()}
            wanted = made.answer.splitlines()
            found += sum(line in lines for line in wanted)
            asked += len(wanted)
    nan = float("nan")
    return Retrieval(
        length / prompts, right / digits, found / asked if free else nan, ended / prompts if free else nan
    )


@torch.no_grad()
def draft_agreement(
    model: TinyHybrid, tokenizer: Tokenizer, row_tokens: int = 1024, steps: int = 6
) -> list[float]:
    """For each draft step: how often its best token is the trunk's, where all steps before agreed."""
    drawn = Batches(tokenizer, seed=1_000_003).batch(0, row_tokens)
    batch = Batch(drawn.ids, drawn.answer, torch.arange(row_tokens + 1).expand_as(drawn.ids))
    states = model.states(batch.ids[:, :-1])
    _, counts = draft_loss(model, batch, states, steps, 256, torch.Generator().manual_seed(0))
    return [float(agreed) / max(1.0, float(tried)) for agreed, tried in counts]


def main(arguments: list[str] | None = None) -> int:
    """Print the scores of a checkpoint; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="checkpoint (default: the shipped one)")
    parser.add_argument("--prompts", type=int, default=8, help="held-out prompts of each length")
    options = parser.parse_args(arguments)
    folder = options.folder or checkpoint_path()
    model, tokenizer = read_model(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    scores = {n: asdict(retrieval_scores(model, tokenizer, n, options.prompts)) for n in SETTINGS}
    report = {"retrieval": scores, "draft_agreement": draft_agreement(model, tokenizer)}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
