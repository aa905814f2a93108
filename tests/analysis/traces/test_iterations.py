"""Iterations, phases and kernels of captures whose answer is known."""

from __future__ import annotations

import pytest

from analysis.extras import Kernel, KernelTrace, Phases
from analysis.traces import read_trace
from analysis.traces.attribution import union_ns
from analysis.traces.classes import class_of
from analysis.traces.iterations import break_down
from analysis.traces.model import Launch, Range, Trace, Work
from analysis.traces.stored import as_extras

from .captures import KERNEL, NVTX, RUNTIME, calls, export, kernels, nvtx


def gpu_trace(iterations=4, shift=1000):
    """Iterations of 400 ns on the device: draft 100 (30 of it idle before it), verify 250, sampling 50."""
    ranges, launches, rows = [], [], []
    for i in range(iterations):
        host, device = 100 * i, shift + 400 * i
        ranges += [
            (host, host + 90, "wmtp.iteration"),
            (host + 1, host + 20, "wmtp.draft"), (host + 5, host + 15, "wmtp.draft_forward"),
            (host + 20, host + 80, "wmtp.verify_commit"), (host + 30, host + 60, "wmtp.verify_forward"),
            (host + 60, host + 70, "wmtp.sampling"),
        ]  # fmt: skip
        work = [(6, 30, 80, "attention"), (7, 80, 100, "gemm"), (31, 100, 350, "attention"),
                (65, 350, 400, "topk")]  # fmt: skip
        for n, (at, start, end, name) in enumerate(work):
            key = 10 * i + n + 1
            launches.append((host + at, key))
            rows.append((device + start, device + end, key, name))
    return {NVTX: nvtx(*ranges), RUNTIME: calls(*launches), KERNEL: kernels(*rows)}


def test_wall_times_of_a_gpu_add_up_and_idle_time_goes_to_what_it_waited_for(tmp_path):
    found = break_down(read_trace(export(tmp_path / "t", gpu_trace())))
    assert found.iterations == 4
    assert found.wall is not None
    assert found.wall.iterations == 3  # what came before the first one is not in the capture
    parts = {name: value * 1e6 for name, value in found.wall.parts_ms.items()}
    assert parts == pytest.approx({"draft_forward": 100, "verify_forward": 250, "sampling": 50})
    assert found.wall.iteration_ms * 1e6 == pytest.approx(400)
    assert found.wall.phases_ms() == pytest.approx(
        {"draft": 1e-4, "verify_base": 2.5e-4, "verify_overhead": 5e-5}
    )


def test_kernels_are_told_apart_by_phase_and_class(tmp_path):
    found = break_down(read_trace(export(tmp_path / "t", gpu_trace())))
    made = {(k.name, k.kind, k.phase): (k.calls, round(k.us * 1e3)) for k in found.kernels}
    assert made == {
        ("attention", "attention", "verify"): (1, 250), ("attention", "attention decode", "draft"): (1, 50),
        ("topk", "other", "overhead"): (1, 50), ("gemm", "matmul", "draft"): (1, 20),
    }  # fmt: skip
    assert {k: round(v * 1e3) for k, v in found.busy_us.items()} == {
        "draft": 70,
        "verify": 250,
        "overhead": 50,
    }
    assert found.unattributed_us == 0


def test_work_outside_iterations_is_shown_and_in_no_phase(tmp_path):
    tables = gpu_trace()
    tables[RUNTIME][1].append((95, 96, tables[RUNTIME][1][0][2], 900))
    tables[KERNEL][1].append((1400, 1440, 0, 900, tables[KERNEL][1][0][4], "scheduler_copy"))
    found = break_down(read_trace(export(tmp_path / "t", tables)))
    assert found.unattributed_us * 1e3 == pytest.approx(10)  # 40 ns over four iterations
    assert found.wall is not None
    # Only the 30 ns before the next draft kernel were idle; the copy takes those, and ten of the kernel.
    assert found.wall.phases_ms()["unattributed"] == pytest.approx(40e-6 / 3)
    assert found.wall.iteration_ms == pytest.approx(4e-4)


def test_the_first_iterations_can_be_left_out(tmp_path):
    found = break_down(read_trace(export(tmp_path / "t", gpu_trace(5))), skipped=2)
    assert found.iterations == 3
    assert sum(k.calls for k in found.kernels) == 4


def test_a_capture_without_marks_gives_totals(tmp_path):
    tables = {NVTX: nvtx((0, 10, "decode_step")), RUNTIME: calls((1, 1)), KERNEL: kernels((5, 25, 1, "k"))}
    found = break_down(read_trace(export(tmp_path / "t", tables)))
    assert (found.iterations, found.wall) == (0, None)
    assert found.total_us * 1e3 == pytest.approx(20)
    assert found.unranged_us == 0


def cpu_trace():
    trace = Trace("torch")

    def add(name, start, end):
        trace.ranges.append(Range(f"wmtp.{name}", start, end, 1, 1))

    for at in (0, 1000, 2000):
        add("iteration", at, at + 800)
        add("draft", at + 10, at + 310)
        add("draft_index", at + 20, at + 40)
        add("draft_forward", at + 50, at + 150)
        add("draft_forward", at + 150, at + 250)
        add("verify_commit", at + 310, at + 710)
        add("verify_forward", at + 320, at + 700)
        trace.work += [
            Work("aten::arange", "operator", at + 21, at + 39, 0, Launch(at + 21, 1, 1)),
            Work("aten::linear", "operator", at + 60, at + 140, 0, Launch(at + 60, 1, 1)),
            Work("aten::linear", "operator", at + 330, at + 690, 0, Launch(at + 330, 1, 1)),
        ]
    return trace


def test_wall_times_of_a_cpu_are_the_ranges_without_those_inside():
    found = break_down(cpu_trace())
    assert found.wall is not None
    assert found.wall.iterations == 2
    assert {name: round(value * 1e6) for name, value in found.wall.parts_ms.items()} == {
        "draft": 80, "draft_index": 20, "draft_forward": 200, "verify_commit": 20, "verify_forward": 380,
        "unattributed": 100, "scheduler": 200,
    }  # fmt: skip
    assert found.wall.iteration_ms == pytest.approx(1e-3)
    kinds = {(k.name, k.phase): (k.kind, k.calls, round(k.us * 1e3)) for k in found.kernels}
    assert kinds == {
        ("aten::arange", "draft"): ("index build", 1, 18), ("aten::linear", "draft"): ("matmul", 1, 80),
        ("aten::linear", "verify"): ("matmul", 1, 360),
    }  # fmt: skip


def test_what_is_stored_has_the_records_schema(tmp_path):
    trace = read_trace(export(tmp_path / "t", gpu_trace()))
    extras = as_extras(trace, break_down(trace), 3)
    assert len([Kernel.model_validate(kernel) for kernel in extras["kernels"]]) == 3
    assert KernelTrace.model_validate(extras["kernel_trace"]).iterations == 4
    phases = Phases.model_validate(extras["profiled_phases"])
    assert (phases.source, phases.iterations) == ("nsys", 3)
    assert phases.overhead_percent == pytest.approx(60)
    # A class holds its small kernels too.
    classes = {name: round(us * 1e3) for name, us in extras["kernel_trace"]["classes_us"].items()}
    assert classes == {"attention decode": 50, "matmul": 20}


@pytest.mark.parametrize(
    ("spans", "length"),
    [([], 0), ([(0, 5)], 5), ([(0, 5), (5, 7)], 7), ([(3, 9), (0, 5), (4, 6)], 9), ([(0, 2), (8, 9)], 3)],
)
def test_union_of_intervals(spans, length):
    assert union_ns(spans) == length


@pytest.mark.parametrize(
    ("name", "part", "kind"),
    [
        ("generate_draft_decode_kv_indices", "draft_prepare", "index build"),
        ("create_flashinfer_kv_indices_triton", "verify_prepare", "index build"),
        ("compact_table_kernel", "draft_forward.2", "index build"),
        ("vectorized_elementwise_kernel", "draft_index", "index build"),
        ("_fwd_grouped_kernel_stage1", "draft_forward.0", "attention decode"),
        ("BatchPrefillWithPagedKVCacheKernel", "draft_forward", "attention decode"),
        ("BatchPrefillWithPagedKVCacheKernel", "draft_extend_forward", "attention extend"),
        ("BatchPrefillWithPagedKVCacheKernel", "verify_forward", "attention"),
        ("_fwd_kernel", "draft_extend_forward", "attention extend"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "draft_forward", "attention decode"),
        ("fused_moe_kernel", "draft_forward", "MoE"),
        ("moe_align_block_size_kernel", "draft_forward", "MoE"),
        ("void flashinfer::norm::FusedAddRMSNormKernel", "draft_forward", "norm"),
        ("chunk_gated_delta_rule_fwd_kernel", "verify_forward", "recurrent"),
        ("memcpy DtoD", "draft_forward", "copy"),
        ("aten::index_select", "draft_forward", "copy"),
        ("aten::index_add", "draft_forward", "other"),
        ("nvjet_tst_64x8", "draft_forward", "matmul"),
        ("aten::mm", "draft_forward", "matmul"),
        ("aten::mm_something_else", "draft_forward", "other"),
        ("ncclDevKernel_AllGather_RING", "draft_forward", "communication"),
        ("argmax_kernel", "draft", "other"),
    ],
)
def test_classes(name, part, kind):
    assert class_of(name, part) == kind


def test_a_copy_of_torch_is_known_by_its_full_name():
    detail = "void at::native::elementwise_kernel<direct_copy_kernel_cuda>"
    assert class_of("elementwise_kernel", "draft", detail) == "copy"
    assert class_of("elementwise_kernel", "draft") == "other"
