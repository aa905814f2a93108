"""The decision probe: does reading a window alone change what the draft proposes?

At each draft forward of a native run, the head is run again on the same token, position and hidden state with
its reads restricted to sink and window, and the first choices are compared (arXiv:2607.21535, appendix C and
table 11). Greedy drafts draw nothing at random, so there is no seed to repeat. One more repetition, with all
reads, is the control: it shares the restricted ones' arithmetic, and what it changes is no window's doing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from harness.engine.probes.choices import Routes, margins, route_overlap
from harness.engine.probes.forwards import DraftForward
from harness.engine.probes.native import NativeProbe, forward_of
from harness.engine.probes.settings import ProbeSettings


class DecisionProbe(NativeProbe):
    """The probe in one process."""

    def __init__(self, settings: ProbeSettings) -> None:
        super().__init__(settings)
        self.routes = Routes()

    def attach(self, result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
        """Listen to the draft's routers as well."""
        super().attach(result, worker)
        self.routes.listen(worker.draft_runner.model)

    def look(
        self, run: Callable[[], Any], original: Callable[..., Any], runner: Any, forward_batch: Any
    ) -> Any:
        """Repeat the forward with each window and with all reads, then run it as it is.

        The repetitions come first: nothing that the real forward leaves for its caller can be overwritten.
        """
        try:
            forward = forward_of(forward_batch)
            windows = (None, *self.settings.windows)
            again = [self._again(original, runner, forward_batch, forward, window) for window in windows]
        except Exception as error:  # noqa: BLE001 - serving goes on
            self.fail(error)
            return run()
        self.routes.start()
        result = run()
        real = (result.logits_output.next_token_logits, self.routes.stop())
        self.safely(lambda: self._compare(forward, real, again))
        return result

    def _again(
        self,
        original: Callable[..., Any],
        runner: Any,
        forward_batch: Any,
        forward: DraftForward,
        window: Any,
    ) -> tuple[Tensor, list[Tensor]]:
        from harness.engine.probes.reread import run_again

        self.routes.start()
        try:
            logits = run_again(original, runner, forward_batch, forward, window)
        finally:
            chosen = self.routes.stop()
        return logits, chosen

    def _compare(
        self,
        forward: DraftForward,
        real: tuple[Tensor, list[Tensor]],
        again: list[tuple[Tensor, list[Tensor]]],
    ) -> list[dict[str, Any]]:
        """One line a request."""
        tokens = list(forward.tokens)

        def chosen(logits: Tensor) -> tuple[list[int], list[float]]:
            rows = logits if logits.shape[0] == len(tokens) else logits[tokens]
            ids, margin = margins(rows)
            return ids.tolist(), margin.tolist()

        ids, margin = chosen(real[0])
        lines: list[dict[str, Any]] = [
            {**forward.facts(i), "margin": margin[i], "windows": []} for i in range(len(tokens))
        ]
        for window, (logits, routes) in zip((None, *self.settings.windows), again, strict=True):
            other_ids, other_margin = chosen(logits)
            overlaps = route_overlap(real[1], routes, tokens, self.routes.experts)
            for i, line in enumerate(lines):
                found = {"agrees": other_ids[i] == ids[i], "margin": other_margin[i],
                         "router_overlap": None if overlaps is None else overlaps[i]}  # fmt: skip
                if window is None:
                    line["control"] = found
                else:
                    line["windows"].append({"window_tokens": window[0], "sink_tokens": window[1], **found})
        return lines
