"""A stand-in for the server process: SGLang's log lines and HTTP answers, no model. Run as the interpreter.

Its behaviour comes from STAND_IN, a JSON object: `start_s`, `prefill_s`, `step_s`, and `fault`, one of
oom_start, die_prefill, die_decode, lose_part (a server that takes minutes to end), hang, eos (outputs end
early). `only_boots_with` limits a fault to commands that hold this word. `accept` is the tokens of a step, 2
where it is not given. `reports` are arguments that it reports instead of those it was given.
"""

import json
import os
import signal
import sys
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ARGS = sys.argv[1:]
SETTINGS = json.loads(os.environ.get("STAND_IN", "{}"))
FAULT = SETTINGS.get("fault", "")
if SETTINGS.get("only_boots_with", "") not in " ".join(ARGS):
    FAULT = ""


def value(name, default=None):
    return ARGS[ARGS.index(name) + 1] if name in ARGS else default


DEPTH = int(value("--speculative-num-draft-tokens", 1))


def log(text):
    print(f"[{datetime.now():%Y-%m-%d %H:%M:%S}] {text}", flush=True)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        window, sink = value("--speculative-draft-window-size"), value("--speculative-draft-sink-size")
        self.answer(
            {
                "context_length": int(value("--context-length")),
                "device": value("--device", "cuda"),
                "tp_size": int(value("--tp-size")),
                "page_size": int(value("--page-size")),
                "dtype": value("--dtype"),
                "kv_cache_dtype": value("--kv-cache-dtype"),
                "decode_log_interval": int(value("--decode-log-interval")),
                "disable_radix_cache": "--disable-radix-cache" in ARGS,
                "speculative_algorithm": "EAGLE" if DEPTH > 1 else None,
                "speculative_num_steps": DEPTH - 1,
                "speculative_num_draft_tokens": DEPTH,
                "speculative_eagle_topk": 1,
                "speculative_draft_window_size": int(window) if window else None,
                "speculative_draft_sink_size": int(sink) if sink else None,
                "max_total_num_tokens": int(value("--max-total-tokens")),
                "internal_states": [{}],
                **SETTINGS.get("reports", {}),
            }
        )

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer({"success": True} if "flush" in self.path else generate(json.loads(body)))


def generate(request):
    prompts, sampling = request["input_ids"], request["sampling_params"]
    each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
    timed = len(prompts[0]) > 64
    for prompt in prompts:
        log(
            f"Prefill batch, #new-seq: 1, #new-token: {len(prompt)}, #cached-token: 0, "
            "full token usage: 0.10, mamba usage: 0.03, #running-req: 0, #queue-req: 0, #pending-token: 0, "
            "cpu graph: False, input throughput (token/s): 1000.00"
        )
        time.sleep(SETTINGS.get("prefill_s", 0.0) if timed else 0)
    if timed and FAULT == "die_prefill":
        log("Scheduler hit an exception: Traceback (most recent call last):")
        print("RuntimeError: an illegal memory access was encountered", flush=True)
        os._exit(1)
    if timed and FAULT == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    limits = [s["max_new_tokens"] // (2 if FAULT == "eos" else 1) for s in each]
    made = [1] * len(prompts)
    steps = [0] * len(prompts)
    accept = min(SETTINGS.get("accept", 2), DEPTH)
    while alive := [i for i, count in enumerate(made) if count < limits[i]]:
        for i in alive:
            made[i] = min(limits[i], made[i] + accept)
            steps[i] += 1
        speed = f"accept len: {accept:.2f}, accept rate: 0.50, " if DEPTH > 1 else ""
        log(
            f"Decode batch, #running-req: {len(alive)}, #full token: {len(prompts[0])}, "
            f"full token usage: 0.1, mamba num: 1, mamba usage: 0.03, {speed}cpu graph: False, "
            f"gen throughput (token/s): {100.0 * len(alive):.2f}, #queue-req: 0"
        )
        time.sleep(SETTINGS.get("step_s", 0.0))
        if timed and FAULT == "lose_part" and max(steps) > 2:
            log("Subprocess detokenizer (pid=9) crashed with exit code -9. Triggering SIGQUIT for cleanup...")
            time.sleep(600)
        if timed and FAULT == "die_decode" and max(steps) > 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return [
        {
            "output_ids": [7] * count,
            "text": "",
            "meta_info": {
                "prompt_tokens": len(prompt),
                "completion_tokens": count,
                "cached_tokens": 0,
                "finish_reason": {"type": "length"},
                # As long as the log's throughput says: 100 tokens/s a request.
                "e2e_latency": 0.01 + accept / 100 * max(steps),
                **(
                    {
                        "spec_verify_ct": taken,
                        "spec_num_correct_drafts": taken * (accept - 1),
                        "spec_num_proposed_drafts": taken * (DEPTH - 1),
                        "spec_correct_drafts_histogram": [taken * (n == accept - 1) for n in range(DEPTH)],
                    }
                    if DEPTH > 1
                    else {}
                ),
            },
        }
        for prompt, count, taken in zip(prompts, made, steps, strict=True)
    ]


def main():
    time.sleep(SETTINGS.get("start_s", 0.0))
    if FAULT == "oom_start":
        log("Scheduler hit an exception: Traceback (most recent call last):")
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", flush=True)
        sys.exit(1)
    pool = int(value("--max-total-tokens", 100000))
    log(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {pool}, K size: 0.01 GB, V size: 0.01 GB")
    if DEPTH > 1:
        log("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 300, K size: 0.00 GB, V size: 0.00 GB")
    told = json.loads(os.environ.get("WINDOWED_MTP", "{}"))
    if told.get("mode", "off") != "off":
        log(
            f"windowed-mtp: mode={told['mode']} window={told['window_tokens']} sink={told['sink_tokens']} "
            f"draft_tokens={DEPTH} topk=1 prune_prefill=false window_extend=true rows=1"
        )
    log(
        f"max_total_num_tokens={pool}, chunked_prefill_size=2048, max_prefill_tokens=16384, "
        f"max_running_requests={value('--max-running-requests')}, context_len={value('--context-length')}, "
        "available_cpu_mem=6.93 GB"
    )
    server = ThreadingHTTPServer(("127.0.0.1", int(value("--port"))), Handler)
    log("The server is fired up and ready to roll!")
    server.serve_forever()


main()
