"""The few hundred bytes that stand for the agent where a backend's fields are too small for its text, or keep it in
sight of others: they fetch it from the control plane, and run it if it is what they were told.
"""

import hashlib

_TEXT = """\
hr_fault() {{
  printf 'headrace-agent: fault: %s\\n' "$1" >&2
  while [[ $HEADRACE_IDLE_AFTER_EXIT == 1 ]]; do sleep 3600; done
  exit 211
}}
for hr_tool in curl sha256sum sleep; do
  command -v "$hr_tool" >/dev/null || hr_fault "the image has no $hr_tool: the agent needs bash, curl and GNU coreutils"
done
for ((hr_try = 1; ; hr_try++)); do
  hr_text=$(curl -q -sS -f -m 60 -K - "${{HEADRACE_URL%/}}/agent/v1/script/{sha256}" \\
    <<<"header = \\"Authorization: Bearer $HEADRACE_TOKEN\\"")
  [[ $(printf '%s\\n' "$hr_text" | sha256sum) == {sha256}* ]] && break
  sleep $((hr_try < 15 ? hr_try : 15))
done
exec "$BASH" -c "$hr_text"
"""


def script_digest(script: str) -> str:
    """What a script is kept, asked for and known by: the hex SHA-256 of its bytes."""
    return hashlib.sha256(script.encode()).hexdigest()


def bootstrap_command(script: str) -> str:
    """The text for `bash -c` that becomes the agent `script`, with the agent's own environment (by URL only).

    It is the same bytes for the same script, and holds no secret. A control plane that is away, or knows no such
    script, is asked again until the machine is deleted: that ends as a machine that did not come up in time, which is
    tried again.

    Raises:
        ValueError: the text does not end with one line feed, so that bash would not read the same bytes.
    """
    if script.endswith("\n\n") or not script.endswith("\n") or "\0" in script:
        raise ValueError("a script that is fetched has no NUL, and ends with one line feed")
    return _TEXT.format(sha256=script_digest(script))
