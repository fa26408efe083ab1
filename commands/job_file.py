"""Job files and flags into the body of a create request.

A job file is the API's request as YAML, with two conveniences under `container`: `script`, the text of a bash script,
and `script_file`, its path relative to the job file; either becomes `script_b64`.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from commands.exits import CommandError, ExitCode

_TEXT = "tag:yaml.org,2002:str"


def usage(message: str, *hints: str) -> CommandError:
    """The error of a wrong argument or file."""
    return CommandError(message, code=ExitCode.USAGE, hints=hints)


def read_job_file(path: Path) -> dict[str, Any]:
    """The request in `path`.

    Raises:
        CommandError: the file is missing, is not YAML, or names a script that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise usage(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{path} cannot be read: {type(error).__name__}") from None
    return parse_job(text, name=str(path), directory=path.parent)


def parse_job(text: str, *, name: str, directory: Path) -> dict[str, Any]:
    """The request in `text`; `name` is what errors call it, `directory` is where `script_file` is looked for."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise usage(f"{name} is empty")
        refuse_repeated_keys(node, name)
        # YAML would read NO as false, 1.10 as 1.1 and 0123 as 83; these places hold text and nothing else.
        _as_text(_at(node, "container", "env"))
        _as_text(_at(node, "labels"))
        _as_text(_at(node, "container", "command"))
        loader = yaml.SafeLoader("")
        try:
            body = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise usage(f"{name}{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise usage(f"{name}: nested too deeply") from None
    except ValueError as error:  # a date such as 2026-13-45
        raise usage(f"{name}: {error}") from None
    if not isinstance(body, dict):
        raise usage(f"{name}: a job is a mapping with `compute` and `container`", "see examples/hello.yaml")
    _inline_script(body, name, directory)
    return body


def _at(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    for key in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for name, value in node.value if name.value == key), None)
    return node


def _as_text(node: yaml.Node | None) -> None:
    if isinstance(node, yaml.MappingNode):
        values = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        values = node.value
    else:
        return
    for value in values:
        if isinstance(value, yaml.ScalarNode):
            value.tag = _TEXT


def refuse_repeated_keys(node: yaml.Node, name: str) -> None:
    """YAML keeps the last of two equal keys without a word: here that would be a setting that was lost."""
    waiting, seen_nodes = [node], set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen_nodes:  # an alias
            continue
        seen_nodes.add(id(current))
        if isinstance(current, yaml.SequenceNode):
            waiting += current.value
        elif isinstance(current, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in current.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise usage(f"{name}, line {key.start_mark.line + 1}: {key.value!r} is there twice")
                    seen.add(key.value)
                waiting.append(value)


def _inline_script(body: dict[str, Any], name: str, directory: Path) -> None:
    container = body.get("container")
    if not isinstance(container, dict):
        return
    given = [key for key in ("command", "script", "script_file", "script_b64") if key in container]
    if len(given) > 1:
        raise usage(f"{name}: container has {' and '.join(given)}; exactly one of them says what runs")
    if isinstance(container.get("command"), str):
        raise usage(
            f"{name}: container.command is a list of words: [echo, hello]", "for a line of shell write `script: ...`"
        )
    if "script" in container:
        script = container.pop("script")
        if not isinstance(script, str):
            raise usage(f"{name}: container.script is the text of a bash script", "write it as a block: `script: |`")
        container["script_b64"] = encode_script(script.encode())
    elif "script_file" in container:
        container["script_b64"] = script_from(directory / str(container.pop("script_file")))


def script_from(path: Path) -> str:
    """The base64 form of the script in `path`."""
    try:
        return encode_script(path.read_bytes())
    except OSError as error:
        raise usage(f"the script {path} cannot be read: {error.strerror}") from None


def encode_script(content: bytes) -> str:
    """What `script_b64` holds."""
    return base64.b64encode(content).decode()


def parse_assignments(pairs: Sequence[str], flag: str) -> dict[str, str]:
    """`NAME=value` pairs; the value may hold further `=` and may be empty."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            # The value is not repeated: it may be a password.
            raise usage(f"{flag} wants NAME=value, and got {name[:40]!r} without a value")
        if name in found:
            raise usage(f"{flag} {name} is there twice")
        found[name] = value
    return found


def merge(body: dict[str, Any], flags: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """`body` with every flag that is not None laid over it; paths are keys from the outside in."""
    for path, value in flags.items():
        if value is None:
            continue
        target = body
        for key in path[:-1]:
            inner = target.setdefault(key, {})
            if not isinstance(inner, dict):
                raise usage(f"{key} in the job file is not a mapping")
            target = inner
        present = target.get(path[-1])
        if isinstance(value, dict) and isinstance(present, dict):
            target[path[-1]] = {**present, **value}
        else:
            target[path[-1]] = value
    return body
