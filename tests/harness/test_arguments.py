"""What a configuration may not pass on to a server, and that secrets stay out of what is kept."""

import pytest

from harness.errors import ConfigError
from harness.server.arguments import check_extra_arguments, check_secrets, check_url, without_secrets
from harness.server.attach import RunningServer
from harness.server.spec import ServerSpec
from harness.sweep import multirun
from tests.harness.test_spec import BASE


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["--host", "0.0.0.0"], "127.0.0.1 only"),
        (["--host=0.0.0.0"], "127.0.0.1 only"),
        (["--hos", "0.0.0.0"], "127.0.0.1 only"),
        (["--trust-remote-code"], "model.trust_remote_code"),
        (["--trust"], "model.trust_remote_code"),
        (["--speculative-num-steps", "3"], "use depth"),
        (["--tp-size", "2"], "use tp"),
        (["--api-key=sesame"], "written to records"),
    ],
)
def test_what_the_harness_sets_itself_is_refused(words, instead):
    with pytest.raises(ConfigError, match=instead) as caught:
        check_extra_arguments(words, "server.extra_arguments")
    assert "sesame" not in str(caught.value)
    assert "0.0.0.0" not in str(caught.value)


def test_every_argument_of_the_command_is_known_as_ours():
    for arm in ("native", "ring"):
        command = ServerSpec(**{**BASE, "arm": arm, "trust_remote_code": True}).command(30000)
        for word in command[3:]:
            if word.startswith("--") and word not in ("--skip-tokenizer-init", "--disable-radix-cache"):
                with pytest.raises(ConfigError):
                    check_extra_arguments([word], "k")


def test_what_only_tunes_the_server_passes():
    check_extra_arguments(["--max-mamba-cache-size", "32", "--mamba-full-memory-ratio=0.1", "-v"], "k")


@pytest.mark.parametrize(
    "url", ["http://me:sesame@host:1", "http://sesame@host:1", "host:30000", "http://[", ""]
)
def test_addresses(url):
    with pytest.raises(ConfigError) as caught:
        check_url(url)
    assert "sesame" not in str(caught.value)
    check_url("https://node-3.example:30000/prefix")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["server=url"], "add server.url="),
        (["server.port=99999"], "from 1 to 65535"),
        (["server.port=0"], "from 1 to 65535"),
        (["server.mem_fraction_static=7"], "between 0 and 1"),
        (["server.startup_timeout_s=nan"], "give a number above 0"),
        (["server.stall_limit_s=-1"], "give a number above 0"),
    ],
)
def test_a_server_that_cannot_be_started_or_watched_is_refused_when_planned(tmp_path, words, answer):
    with pytest.raises(ConfigError, match=answer):
        multirun.plan_of(["arm=dense", "context=512", "hardware=cpu", f"results={tmp_path}", *words])


def test_a_plan_with_a_secret_in_it_is_never_made(tmp_path):
    words = ["arm=dense", "context=512", "hardware=cpu", f"results={tmp_path}"]
    with pytest.raises(ConfigError):
        multirun.plan_of([*words, "server.extra_arguments=[--api-key,sesame]"])
    with pytest.raises(ConfigError):
        multirun.plan_of([*words, "server.kind=url", "server.url='http://me:sesame@host:1'"])


def test_the_key_of_a_running_server_comes_from_the_environment_and_stays_there(monkeypatch):
    monkeypatch.setenv("WMTP_API_KEY", "sesame")
    server = RunningServer(ServerSpec(**BASE), "http://127.0.0.1:1")
    assert server.client._session.headers["Authorization"] == "Bearer sesame"
    assert "sesame" not in repr(server.info)


@pytest.mark.parametrize(
    "words",
    [
        ["--env", "HF_TOKEN"], ["--env=NCCL_DEBUG=INFO"], ["-v", "/run/token:/token"],
        ["--tokenizer-path=/x"], ["--max-prefill-tokens", "8"], ["--export=ALL"],
    ],
)  # fmt: skip
def test_names_alone_and_plain_values_pass(words):
    check_secrets(words, "k")


def test_reported_arguments_lose_their_secrets_at_any_depth():
    reported = {"api_key": "x", "tp_size": 1, "states": [{"admin_api_key": "x", "max_total_num_tokens": 5}]}
    assert without_secrets(reported) == {"tp_size": 1, "states": [{"max_total_num_tokens": 5}]}
