"""Inputs of exactly S tokens after RULER, LongBench-v2 and BABILong, and scoring of the answers.

tokenizer = generators.Tokenizer.load("path/to/model")
record = generators.build("niah_multiquery_enum", context_tokens=1_040_000, tokenizer=tokenizer, seed=0)
generators.score("niah_multiquery_enum", record, output_text)
"""

from generators.record import GENERATOR_VERSION, Needle, Record
from generators.scoring import score
from generators.tasks import TASKS, build
from generators.tokenizer import Tokenizer

__all__ = ["GENERATOR_VERSION", "TASKS", "Needle", "Record", "Tokenizer", "build", "score"]
