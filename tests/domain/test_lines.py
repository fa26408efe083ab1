"""Lines are the same whatever the chunks, and no byte is lost but those that a carriage return overwrote."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from domain.lines import MAX_LINE_BYTES, LineMaker, MadeLines

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def lines_of(*chunks: bytes) -> list[str]:
    """All lines of a stream that came in these chunks at one instant, through a packed state between them."""
    maker, texts = LineMaker(), []
    for chunk in chunks:
        texts += maker.feed(chunk, NOW).texts
        maker = LineMaker.unpack(maker.pack())
    return texts + maker.finish().texts


class TestWhatALineIs:
    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (b"", []),
            (b"\n", [""]),
            (b"a\nb", ["a", "b"]),
            (b"x", ["x"]),
            (b"a\n\n\nb\n", ["a", "", "", "b"]),
            (b"a\r\nb\r\n", ["a", "b"]),
            (b"\r\n", [""]),
            (b"a\r\r\n", ["a"]),
            (b"a\x00b\n", ["a\ufffdb"]),
            (b"\xff\xfe\n", ["\ufffd\ufffd"]),
            (b"\xe2\x82\nabc\n", ["\ufffd", "abc"]),
            ("žluťoučký\u2028kůň\n".encode(), ["žluťoučký\u2028kůň"]),
            (b"tab\tescape\x1b[31mred\x0b\x0c\x85\n", ["tab\tescape\x1b[31mred\x0b\x0c\ufffd"]),
            (b"  \n", ["  "]),
            (b"  \r\n", ["  "]),
        ],
    )
    def test_table(self, data: bytes, expected: list[str]) -> None:
        assert lines_of(data) == expected

    def test_a_character_cut_between_chunks_is_whole(self) -> None:
        data = "naïve 🚀 end\n".encode()
        for cut in range(len(data) + 1):
            assert lines_of(data[:cut], data[cut:]) == ["naïve 🚀 end"]

    def test_crlf_cut_between_chunks_is_one_end_of_line(self) -> None:
        assert lines_of(b"a\r", b"\nb\r", b"\n") == ["a", "b"]

    def test_a_finished_maker_is_as_new(self) -> None:
        maker = LineMaker()
        maker.feed(b"half", NOW)
        assert maker.finish().texts == ["half"]
        assert maker.finish().texts == []
        assert maker.feed(b"way\n", NOW).texts == ["way"]


class TestProgress:
    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (b"\r1%\r2%\r3%\n", ["3%"]),
            (b"1%\r2%\r3%\r", ["3%"]),
            (b"1%\r2%\r3%", ["3%"]),
            (b"start\r100%\r\ndone\n", ["100%", "done"]),
            (b"50%\r\x1b[K\n", ["50%"]),
            (b"50%\r\x1b[2K\r     \r\n", ["50%"]),
            (b"50%\r     \rready\n", ["ready"]),
            (b"\r\r\r\n", [""]),
            (b"\r", []),
            (b"one\ntwo 1\rtwo 2\nthree\n", ["one", "two 2", "three"]),
        ],
    )
    def test_only_the_last_state_is_kept(self, data: bytes, expected: list[str]) -> None:
        assert lines_of(data) == expected

    def test_a_bar_at_100_hz_for_a_minute_gives_bounded_rows_and_its_final_state(self) -> None:
        maker = LineMaker()
        rows: list[tuple[float, str]] = []
        for i in range(6_000):
            now = i / 100
            rows += [(now, text) for text in maker.feed(f"\r{i}%".encode(), after(now)).texts]
        rows += [(60, text) for text in maker.feed(b"\rdone\n", after(60)).texts]
        assert rows[0][0] <= 2
        times = [at for at, _ in rows[:-1]]
        assert all(later - earlier >= 2 for earlier, later in pairwise(times))
        assert len(rows) <= 32
        assert all(text == f"{int(at * 100 + 0.5)}%" for at, text in rows[:-1])
        assert rows[-1] == (60, "done")

    def test_a_state_that_nothing_follows_is_shown_by_the_tick(self) -> None:
        maker = LineMaker()
        assert maker.feed(b"37%\r", NOW).texts == []
        assert maker.snapshot_due_at is not None
        assert maker.snapshot_due_at <= after(2)
        assert maker.tick(after(0.5)).texts == []
        assert maker.tick(maker.snapshot_due_at).texts == ["37%"]
        assert maker.snapshot_due_at is None
        assert maker.tick(after(100)).texts == []

    def test_the_tick_never_brings_two_snapshots_within_two_seconds(self) -> None:
        maker = LineMaker()
        maker.feed(b"1%\r", NOW)
        assert maker.tick(after(1)).texts == ["1%"]
        maker.feed(b"2%\r", after(1.1))
        assert maker.snapshot_due_at == after(3)

    def test_a_new_bar_waits_for_the_last_snapshot_of_the_stream(self) -> None:
        maker = LineMaker()
        maker.feed(b"1%\r", NOW)
        maker.tick(after(1))
        maker.feed(b"2%\nother 1%\r", after(1.5))
        assert maker.snapshot_due_at == after(3)

    def test_a_final_state_that_a_snapshot_showed_is_there_once(self) -> None:
        maker = LineMaker()
        maker.feed(b"100%\r", NOW)
        assert maker.tick(after(1)).texts == ["100%"]
        assert maker.feed(b"\nnext\n", after(5)).texts == ["next"]

    def test_a_line_without_carriage_return_has_no_snapshot(self) -> None:
        maker = LineMaker()
        maker.feed(b"waiting", NOW)
        assert maker.snapshot_due_at is None

    def test_erased_text_has_no_snapshot(self) -> None:
        maker = LineMaker()
        maker.feed(b"\r    \r\x1b[K", NOW)
        assert maker.snapshot_due_at is None


class TestLongLines:
    def test_a_line_of_exactly_the_limit_is_one_row(self) -> None:
        made = LineMaker().feed(b"x" * MAX_LINE_BYTES + b"\r\n", NOW)
        assert made == MadeLines(["x" * MAX_LINE_BYTES])

    def test_one_byte_more_makes_two_rows_of_which_the_first_goes_on(self) -> None:
        made = LineMaker().feed(b"x" * MAX_LINE_BYTES + b"y\nz\n", NOW)
        assert made == MadeLines(["x" * MAX_LINE_BYTES, "y", "z"], [0])

    def test_ten_mebibytes_without_newline_take_bounded_memory_and_lose_nothing(self) -> None:
        maker, rows, continued = LineMaker(), [], 0
        for _ in range(160):
            made = maker.feed(b"a" * 65_536, NOW)
            rows += made.texts
            continued += len(made.continued)
            assert len(maker.pack()) <= MAX_LINE_BYTES + 64
        made = maker.feed(b"\nthe end\n", NOW)
        rows += made.texts
        assert rows[-1] == "the end"
        assert "".join(rows[:-1]) == "a" * (10 << 20)
        assert continued == len(rows) - 2

    def test_a_cut_never_falls_into_a_character(self) -> None:
        text = "€" * 50_000
        rows = lines_of(text.encode())
        assert "".join(rows) == text
        assert len(rows) == 3

    def test_random_bytes_decode_as_they_would_whole(self) -> None:
        noise = random.Random(7).randbytes(1 << 20).replace(b"\n", b"").replace(b"\r", b"")
        assert "".join(lines_of(noise)) == noise.decode("utf-8", "replace").replace("\0", "\ufffd")

    def test_a_mebibyte_of_carriage_returns_is_one_empty_line(self) -> None:
        assert lines_of(b"\r" * (1 << 20) + b"\n") == [""]


PIECES = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b"", b" ", b"abc", b"10%", b"\0", b"\xe2", b"\x82\xac", b"\xff", "🚀".encode(), b"\x1b[K",
     b"x" * 40_000, b"\xe2\x82\xac" * 21_846]
)  # fmt: skip


@given(st.lists(PIECES, max_size=14), st.lists(st.integers(0, 400_000), max_size=6))
@example([b"x" * 40_000, b"\r", b"x" * 40_000, b"x" * 40_000, b"\n"], [80_000])
@example([b"abc", b"\r", b"x" * 40_000, b"x" * 40_000, b"\r", b" ", b"\n"], [])
def test_any_chunking_makes_the_same_lines(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in pairwise(bounds)]
    expected = lines_of(data)
    assert lines_of(*chunks) == expected
    if len(data) < 2_000:
        assert lines_of(*(data[i : i + 1] for i in range(len(data)))) == expected


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8")), max_size=20))
def test_text_lines_come_back_exactly(lines: list[str]) -> None:
    assert lines_of("".join(line + "\n" for line in lines).encode()) == lines


@given(st.binary(max_size=300), st.integers(0, 10))
def test_unpacking_gives_the_packed_maker(data: bytes, seconds: int) -> None:
    maker = LineMaker()
    maker.feed(data, NOW)
    maker.tick(after(seconds))
    again = LineMaker.unpack(maker.pack())
    assert again.pack() == maker.pack()
    assert again.snapshot_due_at == maker.snapshot_due_at
    assert again.finish() == maker.finish()


@pytest.mark.parametrize("packed", [b"", b"\x00" * 40, b"\x01abc"])
def test_a_foreign_state_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="packed state"):
        LineMaker.unpack(packed)
