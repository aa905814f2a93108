"""Both scoring rules on answers as models give them."""

from __future__ import annotations

import pytest

from generators.audits import audit_answer
from generators.scoring import (
    BABILONG_LABELS,
    babilong_strict,
    babilong_upstream,
    longbench_strict,
    longbench_upstream,
    opens_thinking,
    ruler_strict,
    ruler_upstream,
    score,
    without_thinking,
)
from harness.errors import ConfigError


@pytest.mark.parametrize(
    ("task", "target", "output", "question", "upstream", "strict"),
    [
        ("qa7", "none", "none", "How many objects is Mary carrying?", False, True),
        ("qa7", "one", "one", "How many objects is Mary carrying?", True, True),
        ("qa7", "one", "none", "How many objects is Mary carrying?", False, False),
        ("qa6", "yes", "yes, I know", "Is John in the kitchen?", False, True),
        ("qa1", "bathroom", "Let me think. The answer is bathroom.", "Where is Mary?", False, True),
        ("qa1", "kitchen", "<think>Mary went to the garden.</think> kitchen", "Where is Mary?", False, True),
        ("qa1", "kitchen", "<think>Mary went to the kitchen", "Where is Mary?", True, False),
        ("qa19", "n,e", "n, e", "How do you go?", False, True),
        ("qa19", "n,e", "n,e", "How do you go?", True, True),
        ("qa19", "n,e", "s,e", "How do you go?", False, False),
        ("qa1", "bathroom", "bathroom, not kitchen", "Where is Mary?", False, False),
        ("qa1", "bathroom", "not the bathroom", "Where is Mary?", True, False),
        ("qa1", "bathroom", "She isn't in the bathroom", "Where is Mary?", True, False),
        ("qa8", "apple,football", "football and apple", "What is Daniel carrying?", True, True),
        ("qa8", "apple,football", "apple", "What is Daniel carrying?", False, False),
        ("qa8", "apple", "apple and milk", "What is Daniel carrying?", False, False),
        (
            "qa3",
            "office",
            "Before the kitchen it was in the Office.",
            "Where was it before the kitchen?",
            True,
            True,
        ),
        ("qa2", "garden", "**Garden**", "Where is the milk?", True, True),
        ("qa1", "office", "officer", "Where is Mary?", True, False),
        ("qa1", "garden", "", "Where is Mary?", False, False),
    ],
)
def test_babilong(task, target, output, question, upstream, strict):
    assert babilong_upstream(task, target, output, question) is upstream
    assert babilong_strict(task, target, without_thinking(output), question) is strict


def test_babilong_knows_all_twenty_tasks_and_no_other():
    assert sorted(BABILONG_LABELS) == sorted(f"qa{n}" for n in range(1, 21))
    with pytest.raises(ConfigError, match="qa21"):
        babilong_strict("qa21", "x", "x", "?")


@pytest.mark.parametrize(
    ("gold", "output", "upstream", "strict"),
    [
        (["12345"], "The number is 12345.", 1.0, 1.0),
        (["12345"], "3123456", 1.0, 0.0),
        (["12345"], "12345.67 or 12,345 or 5,12345", 1.0, 0.0),
        (["12345"], "**12345**, I think", 1.0, 1.0),
        (["12345", "678"], "12345", 0.5, 0.5),
        (["12345", "678"], "678\n12345", 1.0, 1.0),
        (["12345", "678"], "12345 12345", 0.5, 0.5),
        (["amber-falcon"], "Amber-Falcon!", 1.0, 1.0),
        (["falcon"], "amber-falcon", 1.0, 0.0),
        (["cat"], "concatenate", 1.0, 0.0),
        (["ABCDE"], "VAR ABCDE, VAR FGHIJ", 1.0, 1.0),
        (["7"], "", 0.0, 0.0),
    ],
)
def test_ruler(gold, output, upstream, strict):
    assert ruler_upstream(gold, output) == upstream
    assert ruler_strict(gold, output) == strict


@pytest.mark.parametrize(
    ("output", "upstream", "strict"),
    [
        ("The correct answer is (B).", True, True),
        ("**The correct answer is (B)**", True, True),
        ("The correct answer is B", True, True),
        ("B", False, True),
        ("(B) the second", False, True),
        ("Answer: B", False, True),
        ("The correct answer is (A). No, the correct answer is (B).", False, True),
        ("The correct answer is (C).", False, False),
        ("A or B", False, False),
        ("Because of B's file", False, False),
        ("", False, False),
    ],
)
def test_longbench(output, upstream, strict):
    assert longbench_upstream("B", output) is upstream
    assert longbench_strict("B", output) is strict


@pytest.mark.parametrize(
    ("output", "opened", "answer"),
    [
        ("<think>a</think>b", False, "b"),
        ("a</think>b", True, "b"),
        ("a</think>b", False, "b"),
        ("a", True, ""),
        ("a", False, "a"),
        ("<think>a", False, ""),
        ("<think>a</think>b<think>c", False, "b"),
        ("<THINK>a</THINK>\n b ", False, "b"),
        ("[THINK]a[/THINK]b", False, "b"),
        ("<think></think>x < y", False, "x < y"),
    ],
)
def test_thinking_is_taken_out(output, opened, answer):
    assert without_thinking(output, opened=opened) == answer


def test_prompts_that_end_in_an_opening_tag_are_known():
    assert opens_thinking("<|im_start|>assistant\n<think>\n")
    assert not opens_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_thinking("<|im_start|>assistant\n")


def test_an_answer_cut_off_while_thinking_is_no_answer():
    record = {"task": "vt", "gold": ["ABCDE"], "details": {"opens_thinking": True}}
    assert score("vt", record, "ABCDE it is") == {"strict": 0.0, "upstream": 1.0}
    assert score("vt", record, "hm</think>ABCDE") == {"strict": 1.0, "upstream": 1.0}
    with pytest.raises(ConfigError, match="is of task vt"):
        score("cwe", record, "")


def counted(counts: dict[str, int], gold: list[str]):
    class Counted:
        task = "fwe"
        details = {"unique": "counts"}  # noqa: RUF012
        content = "Text: " + " ".join(" ".join([w] * n) for w, n in counts.items()) + " ...\n\nQuestion: ?"

    Counted.gold = gold
    return Counted()


def test_ties_inside_the_answer_are_fine_and_ties_at_its_edge_are_not():
    counts = {"a": 500, "b": 222, "c": 222, "d": 221}
    for gold in (["a", "b", "c"], ["c", "a", "b"]):
        assert list(audit_answer(counted(counts, gold))) == []
    tied = counted({**counts, "d": 222}, ["a", "b", "c"])
    assert any("leave open" in what or "not the gold" in what for what in audit_answer(tied))
    assert list(audit_answer(counted(counts, ["a", "b", "d"]))) != []
