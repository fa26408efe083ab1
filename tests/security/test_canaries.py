"""The search itself: it finds what is there, and nothing else."""

import base64
import gzip
import json
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.security.canaries import Canary, ProcessWatch, search_bytes, search_texts, search_tree

CANARY = Canary.fresh("env")
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "url": lambda text: urllib.parse.quote(text, safe=""),
    "form": urllib.parse.quote_plus,
    "json": json.dumps,
    "json utf-8": lambda text: json.dumps(text, ensure_ascii=False),
    "json in json": lambda text: json.dumps({"inner": json.dumps({"x": text})}),
    "repr": repr,
    "hex": lambda text: text.encode().hex(),
}


def whole_forms(data: bytes) -> set[str]:
    """The forms that are found besides the random halves, which every readable encoding shows."""
    return {s.form for s in search_bytes([CANARY], data, "here") if not s.form.startswith("part")}


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_is_found_by_its_own_form(name: str) -> None:
    assert name in whole_forms(f"before {ENCODINGS[name](CANARY.text)} after".encode())


@given(before=st.binary(max_size=40), after=st.binary(max_size=40), urlsafe=st.booleans())
def test_base64_is_found_at_every_alignment_and_among_any_bytes(before: bytes, after: bytes, urlsafe: bool) -> None:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    assert whole_forms(encode(before + CANARY.text.encode() + after))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_compressed_data_is_looked_into(pack: Callable[[bytes], bytes]) -> None:
    assert whole_forms(pack(b"x" * 100 + CANARY.text.encode()))


@given(st.binary(max_size=500))
def test_other_data_raises_no_alarm(data: bytes) -> None:
    assert search_bytes([CANARY], data, "here") == []


def test_another_canary_is_not_taken_for_this_one() -> None:
    other = Canary.fresh("env")
    assert search_texts([CANARY], {"answer": other.text}) == []


def test_files_and_their_names_are_searched_and_exceptions_are_not(tmp_path: Path) -> None:
    half = CANARY.text[3:19]
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "dump.sql").write_bytes(b"\0" + CANARY.text.encode())
    (tmp_path / f"name-{half}").touch()
    (tmp_path / "known.txt").write_text(CANARY.text)
    found = search_tree([CANARY], tmp_path, but=["known.txt"])
    assert {sighting.where for sighting in found} == {
        str(tmp_path / "deep" / "dump.sql"),
        f"the name of {tmp_path / f'name-{half}'}",
    }


def test_a_sighting_does_not_repeat_the_secret() -> None:
    assert CANARY.text not in repr(search_texts([CANARY], {"answer": CANARY.text}))


def test_a_process_that_is_given_the_secret_on_its_command_line_is_caught() -> None:
    wait = "import sys; sys.stdin.read()"
    with ProcessWatch([CANARY]) as watch:
        process = subprocess.Popen([sys.executable, "-c", wait, CANARY.text], stdin=subprocess.PIPE)
        seen = watch.samples
        while watch.samples < seen + 2:
            time.sleep(0.001)
        process.communicate()
    assert {sighting.canary for sighting in watch.sightings} == {"env"}


def test_a_process_that_is_given_it_in_its_environment_is_not() -> None:
    with ProcessWatch([CANARY]) as watch:
        subprocess.run([sys.executable, "-c", ""], env={"SECRET": CANARY.text}, check=True)
    assert watch.sightings == set()
