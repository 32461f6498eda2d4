"""Payloads of one shape, decoded together: column by column, not row by row.

A device writes the same members in the same order, and only the values differ:

    {"celsius":21.50,"timestamp_ms":1700000000000,"sensor_id":"a/7"}
    -----------~~~~~----------------~~~~~~~~~~~~~--------------~~~--
    - the texts of its shape        ~ the slots, each of a number or a string

One payload gives the shape. The positions of another payload's quotes tell where its texts must
be, and numpy compares them for all payloads at once. If all payloads have the same texts at the
same offsets, as devices of one make often do, nothing has to be searched.

This is a fast path, never a judge. A row that fits is decoded exactly as the schema's decoder
would. Anything less plain, an escape or an exponent for example, does not fit and is left to
the decoder, which alone decides that a payload is invalid.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from braidmq.columnar.decoding.schemas import Field, TypedSchema
from braidmq.columnar.segments.layout import Bytes, Flags, Numbers, gather_bytes

SLOTS_MAX: Final = 64
QUOTES_FACTOR_MAX: Final = 4
"""Payloads with this many times the quotes of a shape are left to the decoder: each quote takes
memory, and such payloads are more likely an attack than data."""

NUMBER_CHARS_MAX: Final = 24
"""Longer numbers do not fit: two decoders might round them differently."""

_STRING: Final = "string"
_TYPES: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64()}
_PLAIN: Final = {
    "integer": r"^-?([0-9]{1,18}|[1-8][0-9]{18})$",
    "number": r"^-?[0-9]+(\.[0-9]+)?$",
}
"""Numbers that certainly fit their column."""

_VALUES: Final[dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    "ge": pc.greater_equal,
    "le": pc.less_equal,
    "gt": pc.greater,
    "lt": pc.less,
}
_LENGTHS: Final[dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    "min_length": pc.greater_equal,
    "max_length": pc.less_equal,
}
_QUOTE, _BACKSLASH = b'"\\'
_MINUS, _POINT, _ZERO, _NINE = b"-.09"
_TEXT_MIN: Final = 0x20
"""Below it are control characters, and, as signed bytes, all that are not ASCII."""

_OPENING: Final = re.compile(rb" *\{")
_NAME: Final = re.compile(rb' *"([^"\\]*)" *: *')
_VALUE: Final = re.compile(rb'"([^"\\]*)"|-?[0-9]+(\.[0-9]+)?')
_COMMA: Final = re.compile(rb" *,")
_CLOSING: Final = re.compile(rb" *\} *")


class Slot(NamedTuple):
    """A value between two texts: the number of its field, if it has one, and its kind."""

    field: int | None
    kind: str


class Fitting(NamedTuple):
    """The numbers of the rows that fit a shape, and the columns of all fields for them."""

    rows: Numbers
    columns: list[pa.Array]


class Payloads:
    """A binary array for numpy: its bytes, and where its rows start and end."""

    def __init__(self, values: pa.Array) -> None:
        _, offsets, buffer = values.buffers()
        bounds = np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset)
        places = bounds.astype(np.int64)
        places -= bounds[0]
        self.starts: Numbers = places[:-1]
        self.ends: Numbers = places[1:]
        self.buffer: pa.Buffer = buffer.slice(int(bounds[0]), int(places[-1]))
        self.data: Bytes = np.frombuffer(self.buffer, np.uint8)

    def are_all(self, length: int) -> bool:
        """Tell whether every row has *length* bytes."""
        return bool(np.all(self.ends - self.starts == length))

    def _cut_out(self, start: int, end: int) -> bytes:
        """Return bytes start..end of each row, joined; all rows must be equally long."""
        count = len(self.starts)
        # As plain bytes, which numpy copies in one go.
        plain = f"V{end - start}"
        return np.ndarray(
            (count,), plain, self.data, start, (len(self.data) // count,)
        ).tobytes()

    def all_have(self, text: bytes, at: int) -> bool:
        """Tell whether every row has *text* at offset *at*; all must be equally long."""
        return self._cut_out(at, at + len(text)) == text * len(self.starts)

    def pieces(self, start: int, end: int) -> pa.Array:
        """Return bytes start..end of each row as a binary array; all must be equally long."""
        offsets = np.arange(len(self.starts) + 1, dtype=np.int32)
        offsets *= end - start
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._cut_out(start, end))]
        return pa.Array.from_buffers(pa.binary(), len(self.starts), buffers)

    def rows_at(self, places: Numbers) -> Numbers:
        """Return the rows that the bytes at these offsets belong to."""
        found: Numbers = np.searchsorted(self.ends, places, side="right")
        return found

    def quotes(self, count: int) -> tuple[Numbers, Flags]:
        """Return where the quotes of each row are, and which rows have *count* of them."""
        rows = len(self.starts)
        are_quotes = self.data == _QUOTE
        if np.count_nonzero(are_quotes) > QUOTES_FACTOR_MAX * rows * count:
            return np.zeros((rows, count), np.int64), np.zeros(rows, np.bool_)
        found: Numbers = np.flatnonzero(are_quotes)
        # The usual case: every row has *count* quotes, so the positions are a table already.
        if len(found) == rows * count:
            quotes = found.reshape(rows, count)
            if np.all(quotes[:, 0] >= self.starts) and np.all(quotes[:, -1] < self.ends):
                return quotes, np.ones(rows, np.bool_)
        firsts = np.searchsorted(found, self.starts)
        fits = np.searchsorted(found, self.ends) - firsts == count
        places = np.where(fits, firsts, 0)[:, None] + np.arange(count)
        return found.take(places, mode="clip"), fits

    def have(self, text: bytes, places: Numbers) -> Flags:
        """Tell for each offset, which may be out of range, whether *text* is there."""
        last = self.data.size - len(text)
        if last < 0:
            return np.zeros(len(places), np.bool_)
        # An item at every byte, as plain bytes, of which only those at the offsets are copied.
        plain = np.ndarray((last + 1,), f"V{len(text)}", self.data, 0, (1,))
        found = plain[np.clip(places, 0, last)]
        if found.tobytes() == text * len(places):
            return np.ones(len(places), np.bool_)
        same = found.view(np.uint8).reshape(-1, len(text)) == np.frombuffer(text, np.uint8)
        fits: Flags = same.all(axis=1)
        return fits


class Shape:
    """The texts around the values of a payload, and the slots between them.

    *shown* is that payload; *spans* are where its slots start and end.
    """

    def __init__(
        self, shown: bytes, spans: Sequence[tuple[int, int]], slots: Sequence[Slot]
    ) -> None:
        assert len(spans) == len(slots)
        self._slots = slots
        self._spans = spans
        self._length = len(shown)
        bounds = [0, *chain.from_iterable(spans), len(shown)]
        self._texts_at = bounds[0::2]
        self._texts = [
            shown[at:end] for at, end in zip(bounds[0::2], bounds[1::2], strict=True)
        ]

    @classmethod
    def of(cls, payload: bytes, schema: TypedSchema) -> "Shape | None":
        """Return the shape of a payload; None if it is not plain or does not fit *schema*."""
        numbers = {field.name.encode(): i for i, field in enumerate(schema.fields)}
        spans: list[tuple[int, int]] = []
        slots: list[Slot] = []
        seen: set[bytes] = set()
        found, at = _OPENING.match(payload), 0
        while found is not None and len(slots) < SLOTS_MAX:
            name = _NAME.match(payload, found.end())
            value = name and _VALUE.match(payload, name.end())
            if not name or not value or name[1] in seen:
                return None
            seen.add(name[1])
            slot = _slot(schema, numbers.get(name[1]), value)
            if slot is None:
                return None
            inset = slot.kind == _STRING  # quotes belong to the texts, not to the slot
            spans.append((value.start() + inset, value.end() - inset))
            slots.append(slot)
            at = value.end()
            found = _COMMA.match(payload, at)
        if not slots or not _CLOSING.fullmatch(payload, at):
            return None
        if any(f.required and f.name.encode() not in seen for f in schema.fields):
            return None
        return cls(payload, spans, slots)

    def fitting(self, values: pa.Array, fields: Sequence[Field]) -> Fitting:
        """Return the rows of *values*, a binary array without nulls, that fit, decoded."""
        payloads = Payloads(values)
        even = self._is_in_all(payloads)
        starts, ends, fits = self._laid_evenly(payloads) if even else self._laid_on(payloads)
        for slot, start, end in zip(self._slots, starts, ends, strict=True):
            if slot.kind != _STRING:
                fits &= _may_be_numbers(payloads.data, start, end)
        # One comparison of signed bytes finds control characters and all that is not ASCII. The
        # decoder takes those rows, and any with an escape: it checks UTF-8 and unescapes.
        signed = payloads.data.view(np.int8)
        if signed.min(initial=_TEXT_MIN) < _TEXT_MIN:
            fits[payloads.rows_at(np.flatnonzero(signed < _TEXT_MIN))] = False
        escapes = payloads.data == _BACKSLASH
        if escapes.any():
            fits[payloads.rows_at(np.flatnonzero(escapes))] = False
        rows: Numbers = np.flatnonzero(fits)
        if len(rows) < len(values):
            starts, ends = [start[rows] for start in starts], [end[rows] for end in ends]
        elif even:
            return self._decoded(rows, [payloads.pieces(*span) for span in self._spans], fields)
        pieces = [
            gather_bytes(payloads.buffer, start, end)
            for start, end in zip(starts, ends, strict=True)
        ]
        return self._decoded(rows, pieces, fields)

    def _is_in_all(self, payloads: Payloads) -> bool:
        """Tell whether every row has the texts at the same offsets, and no other quotes."""
        if not payloads.are_all(self._length):
            return False
        if not all(map(payloads.all_have, self._texts, self._texts_at)):
            return False
        quotes = sum(text.count(b'"') for text in self._texts)
        return int(np.count_nonzero(payloads.data == _QUOTE)) == quotes * len(payloads.starts)

    def _laid_evenly(self, payloads: Payloads) -> tuple[list[Numbers], list[Numbers], Flags]:
        """Return the same as `_laid_on`, if all rows have the texts at the same offsets."""
        starts = [payloads.starts + start for start, _ in self._spans]
        ends = [payloads.starts + end for _, end in self._spans]
        return starts, ends, np.ones(len(payloads.starts), np.bool_)

    def _laid_on(self, payloads: Payloads) -> tuple[list[Numbers], list[Numbers], Flags]:
        """Return where each row's slots start and end, and which rows have all the texts."""
        counts = [text.count(b'"') for text in self._texts]
        # Every text but the last has a quote, which anchors it; a last text without one ends
        # where its row ends.
        quotes, fits = payloads.quotes(sum(counts))
        starts: list[Numbers] = []
        ends: list[Numbers] = []
        seen = 0
        for text, count in zip(self._texts, counts, strict=True):
            if not starts:
                at = payloads.starts
            elif count:
                at = quotes[:, seen] - text.index(b'"')
            else:
                at = payloads.ends - len(text)  # the last one, behind a number
            ends.append(at)
            fits &= payloads.have(text, at)
            starts.append(at + len(text))
            seen += count
        fits &= starts.pop() == payloads.ends
        return starts, ends[1:], fits

    def _decoded(
        self, rows: Numbers, pieces: list[pa.Array], fields: Sequence[Field]
    ) -> Fitting:
        """Return columns of the *pieces* in the slots of *rows*, without rows that fail."""
        columns = [pa.nulls(len(rows), field.type) for field in fields]
        fine: list[pa.Array] = []
        for slot, piece in zip(self._slots, pieces, strict=True):
            column = piece.view(pa.string())
            if slot.kind != _STRING:
                column = _numbers(column, slot.kind)
            if column.null_count:
                fine.append(column.is_valid())
            if slot.field is not None:
                columns[slot.field] = column
                fine += _judged(fields[slot.field], column)
        odd = np.zeros(len(rows), np.bool_)
        for flags in fine:
            odd |= ~flags.fill_null(pa.scalar(value=False)).to_numpy(zero_copy_only=False)
        if odd.any():
            rows, columns = rows[~odd], [column.filter(pa.array(~odd)) for column in columns]
        return Fitting(rows, columns)


def _slot(schema: TypedSchema, number: int | None, value: re.Match[bytes]) -> Slot | None:
    kind = _STRING if value[1] is not None else "integer" if value[2] is None else "number"
    if number is None:
        anything = Slot(None, _STRING if kind == _STRING else "number")
        return None if schema.is_strict else anything
    field = schema.fields[number]
    fits = field.kind == kind or (field.kind == "number" and kind == "integer")
    return Slot(number, field.kind) if fits and field.is_plain else None


def _may_be_numbers(data: Bytes, starts: Numbers, ends: Numbers) -> Flags:
    """Tell where a number may be, judged by length and first and last character."""
    negative = data.take(starts, mode="clip") == _MINUS
    first_at = starts + negative
    lengths = ends - first_at
    first = data.take(first_at, mode="clip")
    # Not 01 or 0x1, which are not JSON, and not -0, which the decoder reads as 0.
    alone = np.where(lengths == 1, ~negative, data.take(first_at + 1, mode="clip") == _POINT)
    found: Flags = (lengths >= 1) & (lengths <= NUMBER_CHARS_MAX)
    found &= _are_digits(first) & ((first != _ZERO) | alone)
    found &= _are_digits(data.take(ends - 1, mode="clip"))
    return found


def _are_digits(characters: Bytes) -> Flags:
    found: Flags = characters - np.uint8(_ZERO) <= _NINE - _ZERO
    return found


def _numbers(texts: pa.Array, kind: str) -> pa.Array:
    """Return the numbers of texts that passed `_may_be_numbers`; null if one is not plain."""
    # Arrow also reads 1.e5, which is not JSON. Of integers it reads only what JSON allows:
    # `_may_be_numbers` has excluded 0x.
    if kind == "integer" or not _have_letters(texts):
        with suppress(pa.ArrowInvalid):
            return texts.cast(_TYPES[kind])
    plain = pc.match_substring_regex(texts, _PLAIN[kind])
    return pc.if_else(plain, texts, None).cast(_TYPES[kind])


def _have_letters(texts: pa.Array) -> bool:
    return int(Payloads(texts).data.max(initial=0)) > _NINE


def _judged(field: Field, column: pa.Array) -> list[pa.Array]:
    """Return for each bound which values are within it; null where there is no value."""
    found = []
    for name, bound in field.bounds.items():
        if name in _LENGTHS:
            lengths = pc.binary_length(column)
            found.append(_LENGTHS[name](lengths, pa.scalar(bound, lengths.type)))
        else:
            found.append(_VALUES[name](column, pa.scalar(bound, column.type)))
    return found
