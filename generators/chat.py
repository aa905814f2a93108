"""A model's own chat template, rendered without transformers.

Only the frame around one user message is needed: the text before it and the text after it, generation prompt
included. The message itself never passes through the template, so nothing in it can be interpreted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from harness.errors import InputError
from harness.regular import read_regular

# Stands for the message while the template is rendered.
_PLACEHOLDER = "\ue002message\ue003"
# Templates may print today's date; a fixed one keeps prompts the same on every day.
TEMPLATE_DATE = "01 Jan 2026"
_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class _Generation(Extension):
    """Accepts `{% generation %}` blocks, which mark assistant text and print it unchanged."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_regular(path).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` of a tokenizer folder; empty where there is none."""
    path = folder / "tokenizer_config.json"
    config = _read_json(path) if path.is_file() else {}
    if not isinstance(config, dict):
        raise InputError(f"{path} does not hold a JSON object.")
    return config


def find_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template of a tokenizer folder, in the order in which transformers looks for it."""
    if (folder / "chat_template.jinja").is_file():
        try:
            return (folder / "chat_template.jinja").read_text("utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{folder / 'chat_template.jinja'} cannot be read: {error}") from error
    if (folder / "chat_template.json").is_file():
        loaded = _read_json(folder / "chat_template.json")
        template = loaded.get("chat_template") if isinstance(loaded, dict) else None
    else:
        template = config.get("chat_template")
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_NAMES:
        token = config.get(name)
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str):
            found[name] = token
    return found


def render_frame(template: str, config: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[str, str]:
    """The text that a chat template puts before and after one user message.

    Args:
        template: Jinja source.
        config: `tokenizer_config.json`, for the special tokens a template prints.
        options: further template variables, such as `enable_thinking`.

    Returns:
        (before, after), with the generation prompt in `after`.

    Raises:
        InputError: the template fails, or drops, changes or repeats the message.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda _format: TEMPLATE_DATE
    variables: dict[str, Any] = {**_special_tokens(config), "tools": None, "documents": None, **options}
    variables |= {"messages": [{"role": "user", "content": _PLACEHOLDER}], "add_generation_prompt": True}
    try:
        text = environment.from_string(template).render(variables)
    except Exception as error:  # a template is a foreign program: anything can come out
        raise InputError(f"The tokenizer's chat template cannot be rendered: {error}") from error
    before, *rest = text.split(_PLACEHOLDER)
    if len(rest) != 1:
        raise InputError(f"The chat template prints the user message {len(rest)} times, not once.")
    return before, rest[0]
