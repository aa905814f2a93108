"""Stand-ins for FlashInfer's attention wrappers, whose kernels need a GPU.

Each keeps what it was planned with as the real one does: a CUDA-graph wrapper copies into the buffers it was
given and, planned the fast way, trusts the caller's host lengths; another keeps references to the caller's
tensors. Attention is computed in plain PyTorch from exactly that. A wrapper whose host plan and device
buffers disagree when it runs would schedule one thing and read another: here that is an error.

As a plugin of the tests (`activate`) they take the wrappers' place in a server's processes.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


def attend(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, soft_cap: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attention of q [n, heads, dim] over keys, values [m, kv heads, dim], ends aligned if causal.

    Returns:
        Output like q, and the logarithm of the weights' sum [n, heads]: -inf, with output 0, over no key.
    """
    group = q.shape[1] // keys.shape[1]
    keys = keys.to(torch.float32).repeat_interleave(group, 1)
    values = values.to(torch.float32).repeat_interleave(group, 1)
    scores = torch.einsum("nhd,mhd->hnm", q.to(torch.float32), keys) * scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if causal:
        n, m = q.shape[0], keys.shape[0]
        hidden = torch.arange(m)[None] > torch.arange(n)[:, None] + m - n
        scores = scores.masked_fill(hidden, float("-inf"))
    lse = scores.logsumexp(-1) if keys.shape[0] else scores.new_full(scores.shape[:2], float("-inf"))
    weights = torch.nan_to_num((scores - lse[..., None]).exp(), nan=0.0)
    return torch.einsum("hnm,mhd->nhd", weights, values).to(q.dtype), lse.T


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """One attention out of two over disjoint keys."""
    lse = torch.logaddexp(lse_a, lse_b)
    weights = [torch.nan_to_num((part - lse).exp(), nan=0.0)[..., None] for part in (lse_a, lse_b)]
    return (out_a * weights[0] + out_b * weights[1]).to(out_a.dtype), lse


def _host(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.int64).clone()


class _PlanModule:
    """In place of the compiled module, which turns host lengths into a schedule."""

    def plan(self, *arguments: Any) -> SimpleNamespace:
        qo, kv, lengths = (_host(values) for values in arguments[3:6])
        return SimpleNamespace(qo=qo, kv=kv, lengths=lengths)


class PagedPrefill:
    """Stand-in for `BatchPrefillWithPagedKVCacheWrapper` (fa2)."""

    _float_workspace_buffer = _int_workspace_buffer = _pin_memory_int_workspace_buffer = None
    _max_total_num_rows: int | None = None
    _plan_info: Any = None

    def __init__(
        self,
        workspace: Tensor,
        layout: str,
        use_cuda_graph: bool = False,
        backend: str = "fa2",
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
    ) -> None:
        assert layout == "NHD" and backend == "fa2"
        self.is_cuda_graph_enabled, self._backend = use_cuda_graph, backend
        self.device = torch.device("cpu")
        self._qo_indptr_buf, self._paged_kv_indptr_buf = qo_indptr_buf, paged_kv_indptr_buf
        self._paged_kv_indices_buf = paged_kv_indices_buf
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buf
        self._custom_mask_buf, self._mask_indptr_buf = custom_mask_buf, mask_indptr_buf
        self._cached_module: _PlanModule | None = None

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        last_page_len: Tensor,
        *shape: int,
        custom_mask: Tensor | None = None,
        window_left: int = -1,
        **ignored: Any,
    ) -> None:
        assert shape[-1] == 1, "page size"
        assert custom_mask is None and window_left < 0, "no draft forward here asks for these"
        assert qo_indptr.shape == kv_indptr.shape and len(last_page_len) == len(qo_indptr) - 1
        if self.is_cuda_graph_enabled:
            copy_into(self._qo_indptr_buf, qo_indptr)
            copy_into(self._paged_kv_indptr_buf, kv_indptr)
            assert self._paged_kv_indices_buf is not None
            copy_into(self._paged_kv_indices_buf[: len(kv_indices)], kv_indices)
            self._max_total_num_rows = self._max_total_num_rows or int(qo_indptr[-1])
            assert int(qo_indptr[-1]) <= self._max_total_num_rows
        else:
            self._qo_indptr_buf, self._paged_kv_indptr_buf = qo_indptr, kv_indptr
            self._paged_kv_indices_buf = kv_indices
        self._cached_module = _PlanModule()
        lengths = kv_indptr[1:] - kv_indptr[:-1]
        self._plan_info = self._cached_module.plan(None, None, None, qo_indptr, kv_indptr, lengths)

    begin_forward = plan

    def forward(self, q: Tensor, kv_cache: Any, **options: Any) -> Tensor:
        return self.forward_return_lse(q, kv_cache, **options)[0]

    def forward_return_lse(
        self,
        q: Tensor,
        kv_cache: Any,
        causal: bool,
        sm_scale: float,
        window_left: int = -1,
        logits_soft_cap: float = 0.0,
        **ignored: Any,
    ) -> tuple[Tensor, Tensor]:
        assert window_left is None or window_left < 0
        plan, indices = self._plan_info, self._paged_kv_indices_buf
        check_plan(plan.qo, self._qo_indptr_buf)
        check_plan(plan.kv, self._paged_kv_indptr_buf)
        assert torch.equal(plan.lengths, plan.kv[1:] - plan.kv[:-1])
        assert indices is not None and q.shape[0] == int(plan.qo[-1])
        keys, values = kv_cache
        parts = []
        for lane in range(len(plan.qo) - 1):
            slots = indices[plan.kv[lane] : plan.kv[lane + 1]].to(torch.int64)
            mine = q[plan.qo[lane] : plan.qo[lane + 1]]
            parts.append(attend(mine, keys[slots], values[slots], sm_scale, logits_soft_cap or 0.0, causal))
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


class RaggedPrefill:
    """Stand-in for `BatchPrefillWithRaggedKVCacheWrapper`."""

    def __init__(self, workspace: Tensor, layout: str, backend: str = "auto") -> None:
        assert layout == "NHD"

    def begin_forward(self, qo_indptr: Tensor, kv_indptr: Tensor, *shape: int, **ignored: Any) -> None:
        self.qo, self.kv = qo_indptr, kv_indptr
        self._plan_info = (_host(qo_indptr), _host(kv_indptr))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return self.forward_return_lse(q, k, v, **options)[0]

    def forward_return_lse(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        sm_scale: float,
        window_left: int = -1,
        logits_soft_cap: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        assert window_left is None or window_left < 0
        qo, kv = self._plan_info
        check_plan(qo, self.qo)
        check_plan(kv, self.kv)
        assert q.shape[0] == int(qo[-1]) and k.shape[0] == v.shape[0] == int(kv[-1])
        parts = []
        for lane in range(len(qo) - 1):
            own, mine = slice(kv[lane], kv[lane + 1]), slice(qo[lane], qo[lane + 1])
            parts.append(attend(q[mine], k[own], v[own], sm_scale, logits_soft_cap or 0.0, causal))
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


class PagedDecode:
    """Stand-in for `BatchDecodeWithPagedKVCacheWrapper`."""

    _plan_info: Any = None

    def __init__(
        self,
        workspace: Tensor,
        layout: str,
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert layout == "NHD"
        self.is_cuda_graph_enabled = use_cuda_graph
        self._paged_kv_indptr_buf, self._paged_kv_indices_buf = (
            paged_kv_indptr_buffer,
            paged_kv_indices_buffer,
        )
        self._lanes = 0 if paged_kv_last_page_len_buffer is None else len(paged_kv_last_page_len_buffer)

    def begin_forward(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, *shape: int, **ignored: Any
    ) -> None:
        assert shape[-1] == 1 and len(last_page_len) == len(indptr) - 1
        if self.is_cuda_graph_enabled:
            assert len(last_page_len) == self._lanes and self._paged_kv_indices_buf is not None
            copy_into(self._paged_kv_indptr_buf, indptr)
            copy_into(self._paged_kv_indices_buf[: len(indices)], indices)
        else:
            self._paged_kv_indptr_buf, self._paged_kv_indices_buf = indptr, indices
        self._plan_info = _host(indptr)

    def forward(
        self, q: Tensor, kv_cache: Any, sm_scale: float, logits_soft_cap: float = 0.0, **ignored: Any
    ) -> Tensor:
        indptr, indices = self._plan_info, self._paged_kv_indices_buf
        check_plan(indptr, self._paged_kv_indptr_buf)
        assert indices is not None and q.shape[0] == len(indptr) - 1
        assert len(indices) >= int(indptr[-1])
        keys, values = kv_cache
        parts = []
        for lane in range(q.shape[0]):
            slots = indices[indptr[lane] : indptr[lane + 1]].to(torch.int64)
            mine = q[lane : lane + 1]
            parts.append(attend(mine, keys[slots], values[slots], sm_scale, logits_soft_cap or 0.0, False)[0])
        return torch.cat(parts)


def fast_decode_plan(
    wrapper: PagedDecode,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    *shape: int,
    global_override_indptr_cpu: Tensor | None = None,
    **ignored: Any,
) -> None:
    """Stand-in for FlashInfer's: nothing is copied into a graph's buffers, the caller has filled them."""
    assert wrapper.is_cuda_graph_enabled and wrapper._paged_kv_indices_buf is not None
    assert len(last_page_len) == wrapper._lanes and len(indices) <= len(wrapper._paged_kv_indices_buf)
    override = global_override_indptr_cpu
    wrapper._plan_info = _host(indptr if override is None else override)


def copy_into(buffer: Tensor | None, values: Tensor) -> None:
    assert buffer is not None and buffer.shape == values.shape
    buffer.copy_(values)


def check_plan(host: Tensor, device: Tensor | None) -> None:
    """The schedule was made for these lengths; the kernel reads those."""
    assert device is not None
    assert host.tolist() == device.tolist(), f"planned for {host.tolist()}, reads {device.tolist()}"


class TorchWithoutCuda(ModuleType):
    """torch, with tensors that name the device "cuda" made on the CPU."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("empty", "zeros", "ones", "full", "tensor", "arange"):
            return found

        def make(*arguments: Any, device: Any = None, **options: Any) -> Any:
            return found(*arguments, device="cpu" if device == "cuda" else device, **options)

        return make


REPLACED = {
    "BatchPrefillWithPagedKVCacheWrapper": PagedPrefill,
    "BatchPrefillWithRaggedKVCacheWrapper": RaggedPrefill,
    "BatchDecodeWithPagedKVCacheWrapper": PagedDecode,
    "fast_decode_plan": fast_decode_plan,
    "_safe_merge_state": merge,
    "torch": TorchWithoutCuda("torch"),
}
"""Names of SGLang's FlashInfer module, and what stands in for each."""


def activate() -> None:
    from sglang.srt.layers.attention import attention_registry, flashinfer_backend

    # SGLang's own maker of it wants a CUDA stream.
    attention_registry.ATTENTION_BACKENDS["flashinfer"] = flashinfer_backend.FlashInferAttnBackend
    for name, value in REPLACED.items():
        setattr(flashinfer_backend, name, value)
    print("flashinfer-standin: in place", flush=True)
