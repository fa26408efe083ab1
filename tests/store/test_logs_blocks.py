"""A block comes back as it was made, in both directions, and says so when it does not."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.lines import MadeLines
from store.logs.blocks import Block, BlockLimits, CorruptBlock, Run, decode, encode, into_blocks, join, lines_of
from store.logs.records import LINE_OVERHEAD_BYTES, LogLine, to_microseconds

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
USER = Run(0, to_microseconds(NOW), "user", "stdout", 3)
SYSTEM = Run(0, to_microseconds(NOW), "system", "stderr", None)
LIMITS = BlockLimits(lines=5, text_bytes=64)

TEXTS = st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=30), max_size=30)


@given(TEXTS, st.sets(st.integers(0, 29)), st.booleans())
def test_lines_survive_cutting_encoding_and_joining(texts: list[str], continued: set[int], system: bool) -> None:
    made = MadeLines(texts, sorted(index for index in continued if index < len(texts)))
    blocks = [decode(encode(block, 1)) for block in into_blocks(made, SYSTEM if system else USER, LIMITS)]
    for block in blocks:
        assert block.line_count <= LIMITS.lines
        assert len(block.body) <= LIMITS.text_bytes or block.line_count == 1
    source, stream, rank = ("system", "stderr", None) if system else ("user", "stdout", 3)
    expected = [
        LogLine(7 + index, NOW, source, stream, text, rank, index in continued)  # type: ignore[arg-type]
        for index, text in enumerate(texts)
    ]
    assert sum(block.counted_bytes for block in blocks) == sum(
        len(text.encode()) + LINE_OVERHEAD_BYTES for text in texts
    )
    if blocks:
        whole = decode(encode(join(blocks), 3))
        assert whole.counted_bytes == sum(block.counted_bytes for block in blocks)
        for after in (None, 0, 6, 7, 9, 7 + len(texts), 100):
            up = list(lines_of(whole, 7, source=None, ascending=True, after=after))
            down = list(lines_of(whole, 7, source=None, ascending=False, after=after))
            assert up == [line for line in expected if after is None or line.seq > after]
            assert down == [line for line in reversed(expected) if after is None or line.seq < after]


def test_a_source_is_picked_out_of_mixed_runs() -> None:
    parts = [
        block
        for like, text in ((USER, "a"), (SYSTEM, "b"), (USER, "c"))
        for block in into_blocks(MadeLines([text]), like, LIMITS)
    ]
    block = join(parts)
    assert (block.line_count, block.user_lines) == (3, 2)
    picked = lines_of(block, 1, source="user", ascending=False, after=None)
    assert [(line.seq, line.message) for line in picked] == [(3, "c"), (1, "a")]


@given(st.binary(max_size=60))
def test_bytes_that_are_no_block_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptBlock):
        decode(data)


@given(st.data())
def test_a_changed_byte_is_found(data: st.DataObject) -> None:
    (block,) = into_blocks(MadeLines(["some text", "and more of it"]), USER, LIMITS)
    encoded = bytearray(encode(block, 1))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    with suppress(CorruptBlock):
        # A bit that the format ignores may change; the lines may not.
        assert decode(bytes(encoded)) == block


def test_a_block_whose_texts_do_not_match_its_runs_is_refused() -> None:
    block = Block((Run(2, 0, "user", "stdout", 0),), b"only one")
    with pytest.raises(CorruptBlock, match="2 lines holds 1"):
        list(lines_of(block, 1, source=None, ascending=True, after=None))
