"""Documents packed into rows of token ids, with stretched positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from generators.rng import Stream
from harness.engine.tiny.corpus import Document, document, drill, short_document, story
from harness.engine.tiny.losses import Batch
from harness.engine.tiny.tokenizer import TURN_END, chat_prompt

SHORT_ROW = 192
DRILL_ROW = 384
_GAPS = 6
_SPANS = (4096, 16384, 34000)


@dataclass(frozen=True)
class Batches:
    """Training batches; number `step` is the same for the same seed.

    Attributes:
        tokenizer: gives the ids.
        seed: of the whole corpus.
        tokens_per_step: about how many tokens a batch of long rows holds; short rows get half as many.
        drills: whether rows of up to `DRILL_ROW` tokens hold drills.
        stories_percent: share of documents that are stories instead.
    """

    tokenizer: Tokenizer
    seed: int
    tokens_per_step: int = 4096
    drills: bool = False
    stories_percent: int = 0

    def batch(self, step: int, row_tokens: int) -> Batch:
        """Batch `step` with rows of `row_tokens` + 1 ids; rows of `SHORT_ROW` hold short documents only."""
        budget = self.tokens_per_step if row_tokens > 512 else self.tokens_per_step // 2
        rows = max(1, budget // row_tokens)
        stream = Stream("tiny-corpus", self.seed, step, row_tokens)
        packed = [self._row(stream.child(row), row_tokens) for row in range(rows)]
        positions = [stretched(stream.child("positions", row), row_tokens + 1) for row in range(rows)]
        return Batch(
            torch.tensor([ids for ids, _ in packed]),
            torch.tensor([answer for _, answer in packed]),
            torch.tensor(positions),
        )

    def _row(self, stream: Stream, row_tokens: int) -> tuple[list[int], list[bool]]:
        ids: list[int] = []
        answer: list[bool] = []
        while len(ids) <= row_tokens:
            if self.stories_percent and stream.integer(0, 99) < self.stories_percent:
                made = story(stream, stream.integer(4, 24))
            elif self.drills and row_tokens <= DRILL_ROW:
                made = drill(stream)
            elif row_tokens <= SHORT_ROW:
                made = short_document(stream)
            else:
                left = row_tokens - len(ids)
                aim = int(left * stream.integer(55, 92) / 100) if left > 150 else 0
                made = document(stream, aim) if aim else short_document(stream)
            prompt, reply = encode(self.tokenizer, made)
            ids += prompt + reply
            answer += [False] * len(prompt) + [True] * len(reply)
        return ids[: row_tokens + 1], answer[: row_tokens + 1]


def encode(tokenizer: Tokenizer, made: Document) -> tuple[list[int], list[int]]:
    """Ids of a document's chat prompt and of its answer with the end of the turn."""
    prompt = tokenizer.encode(chat_prompt(made.message)).ids
    return prompt, tokenizer.encode(f"{made.answer}{TURN_END}\n").ids


def stretched(stream: Stream, count: int) -> list[int]:
    """Positions of `count` tokens: in half of the longer rows a few gaps put text far apart, up to 34K.

    So a model trained on short rows has seen the rotary distances of long contexts.
    """
    if count <= 257 or stream.integer(0, 1):
        return list(range(count))
    cuts = sorted(int(i) for i in stream.below(count, _GAPS))
    extra = sorted(int(i) for i in stream.below(stream.choice(_SPANS), _GAPS))
    shift, place, positions = 0, 0, []
    for i in range(count):
        while place < _GAPS and i >= cuts[place]:
            shift = extra[place]
            place += 1
        positions.append(i + shift)
    return positions
