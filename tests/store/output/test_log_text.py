"""The text that a query finds in the kept pieces of a log."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tuner.store.output.log_text import LogText, Piece, text_of
from tuner.store.records import LogQuery

FILE = "".join(f"line {number}\n" for number in range(100)).encode()
ALL = LogQuery()


def pieces(*ranges: tuple[int, int], file: bytes = FILE) -> list[Piece]:
    return [Piece(start, end, lambda start=start, end=end: file[start:end]) for start, end in ranges]  # type: ignore[misc]


def test_overlapping_pieces_make_one_text() -> None:
    whole = pieces((0, 300), (100, 400), (350, len(FILE)), (360, 370))
    assert text_of(whole, ALL, True) == LogText(0, len(FILE), FILE.decode(), 0)


def test_what_is_left_out_is_said_where_it_is_missing() -> None:
    found = text_of(pieces((0, 7), (693, len(FILE))), ALL, True)
    assert found.left_out == 686
    assert found.text.startswith("line 0\n[... 686 bytes of the log were not kept ...]\n")
    assert found.text.endswith("line 99\n")
    found = text_of(pieces((3, 10)), ALL, True)
    assert found == LogText(0, 10, "[... 3 bytes of the log were not kept ...]\ne 0\nlin", 3)
    in_line = text_of(pieces((0, 3), (7, 14)), ALL, True)
    assert in_line.text == "lin\n[... 4 bytes of the log were not kept ...]\nline 1\n"


@pytest.mark.parametrize("end", [b"", b"unfinished"])
def test_the_last_lines(end: bytes) -> None:
    file = FILE + end
    parts = pieces((0, 100), (100, 500), (500, len(file)), file=file)
    lines = file.decode().splitlines(keepends=True)
    for tail in (0, 1, 2, 50, len(lines), 1000):
        found = text_of(parts, LogQuery(tail=tail), True)
        assert found.text == "".join(lines[-tail:] if tail else []), tail
        assert file[found.start :].decode() == found.text
        assert found.end == len(file)


def test_long_lines_are_found_by_looking_further_back() -> None:
    file = b"".join(b"x" * 5000 + b"\n" for _ in range(9))
    found = text_of(pieces((0, len(file)), file=file), LogQuery(tail=4), True)
    assert found.text.count("\n") == 4
    assert len(found.text) == 4 * 5001
    short = text_of(pieces((0, len(file)), file=file), LogQuery(tail=4, limit=7000), True)
    assert len(short.text) == 7000


def test_reading_on_from_an_offset_gives_every_byte_once() -> None:
    parts = pieces((0, 300), (300, len(FILE)))
    text, at = "", 0
    for _ in range(100):
        found = text_of(parts, LogQuery(offset=at, limit=37), True)
        text, at = text + found.text, found.end
        assert found.end - found.start <= 37
    assert text == FILE.decode()
    assert text_of(parts, LogQuery(offset=at), True) == LogText(at, at, "", 0)
    past = text_of(pieces((0, 7), (20, 30)), LogQuery(offset=10), True)
    assert (past.start, past.end, past.left_out) == (10, 30, 10)


def test_a_character_is_not_torn_while_more_is_to_come() -> None:
    file = "é✓🙂".encode()
    for cut in range(1, len(file)):
        found = text_of(pieces((0, cut), file=file), LogQuery(offset=0), False)
        assert "\ufffd" not in found.text
        rest = text_of(pieces((0, cut), (cut, len(file)), file=file), LogQuery(offset=found.end), True)
        assert found.text + rest.text == "é✓🙂"
    assert "\ufffd" in text_of(pieces((0, 1), file=file), ALL, True).text


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 11])
def test_a_window_does_not_tear_a_character(limit: int) -> None:
    file = "é✓🙂x🙂🙂".encode() + b"\xf0\x9f"
    parts = pieces((0, 9), (9, len(file)), file=file)
    text, at = "", 0
    for _ in range(len(file)):
        found = text_of(parts, LogQuery(offset=at, limit=limit), True)
        text, at = text + found.text, found.end
    assert text == "é✓🙂x🙂🙂\ufffd", "only the last character is torn in the file itself"
    assert at == len(file)


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_window_does_not_tear_a_character_that_spans_pieces(limit: int) -> None:
    file = "a🙂✓é🙂".encode()
    for cuts in itertools.combinations(range(1, len(file)), 2):
        parts = pieces(*itertools.pairwise((0, *cuts, len(file))), file=file)
        text, at = "", 0
        for _ in range(len(file)):
            found = text_of(parts, LogQuery(offset=at, limit=limit), True)
            text, at = text + found.text, found.end
        assert text == "a🙂✓é🙂", cuts


def test_search_finds_whole_lines_in_any_case() -> None:
    parts = pieces((0, 301), (301, len(FILE)))
    found = text_of(parts, LogQuery(search="LINE 9"), True)
    assert found.text.split("\n") == ["line 9", *(f"line 9{n}" for n in range(10)), ""]
    assert text_of(parts, LogQuery(search="line 9", tail=2), True).text == "line 98\nline 99\n"
    assert text_of(parts, LogQuery(search="line 9", limit=20), True).text == "line 98\nline 99\n"
    assert text_of(parts, LogQuery(search="line 9", limit=16), True).text == "line 98\nline 99\n"
    assert text_of(parts, LogQuery(search="line 99", limit=3), True).text == "99\n"
    assert text_of(parts, LogQuery(search="nothing"), True).text == ""
    assert text_of(pieces((0, 7), (21, 28)), LogQuery(search="line"), True) == LogText(0, 28, "line 0\nline 3\n", 14)
    assert replace(text_of(parts, LogQuery(search="line"), True), text="") == LogText(0, len(FILE), "", 0)


def test_nothing_is_empty() -> None:
    for query in (ALL, LogQuery(tail=5), LogQuery(offset=3), LogQuery(search="x")):
        assert text_of([], query, False).text == ""
