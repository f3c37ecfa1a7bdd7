"""Fields: the payloads of frames (native/PROTOCOL.md), and types that are coded as fields.

A `FieldBuilder` writes them, `Fields` reads them from a hostile peer. A `Body` is a frozen type
that names the tag and the range of each of its attributes in `PARTS`; one codec serves all.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, Self

import msgspec

from skerry.errors import InvalidRequest
from skerry.wire.frames import PAYLOAD_BYTES_MAX, GuestFrame, ProtocolError, Tag

NUMBER_MAX: Final = (1 << 63) - 1
TEXT_BYTES_MAX: Final = 4096

_FIELD = struct.Struct("<BI")
_FIELD_U64 = struct.Struct("<BIQ")
_U64 = struct.Struct("<Q")
_FIELD_HEADER_BYTES: Final = 5


class FieldBuilder:
    """Collects fields into a payload. Text and words are refused if they hold a NUL."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def u64(self, tag: int, value: int) -> FieldBuilder:
        """Adds a number of 0..2^64-1; raises InvalidRequest beyond that."""
        if not 0 <= value < 1 << 64:
            raise InvalidRequest(f"field {tag}: {value} is no unsigned 64-bit number")
        self._parts.append(_FIELD_U64.pack(tag, 8, value))
        return self

    def raw(self, tag: int, value: bytes) -> FieldBuilder:
        """Adds bytes as they are."""
        self._parts.append(_FIELD.pack(tag, len(value)) + value)
        return self

    def word(self, tag: int, value: bytes) -> FieldBuilder:
        """Adds an argument, an environment entry or a path."""
        if b"\0" in value:
            raise InvalidRequest(f"field {tag}: {value[:64]!r} holds a NUL")
        self._parts.append(_FIELD.pack(tag, len(value)) + value)
        return self

    def text(self, tag: int, value: str) -> FieldBuilder:
        """Adds text as UTF-8; surrogate escapes become the bytes they stand for."""
        return self.word(tag, value.encode("utf-8", "surrogateescape"))

    def payload(self) -> bytes:
        """Returns the fields in the order in which they were added."""
        return b"".join(self._parts)


class Fields:
    """The fields of a received payload, all lengths checked. Unknown tags are ignored.

    A tag asked for as one value must be there once; every getter raises ProtocolError otherwise.
    `by_tag` holds all values in order.
    """

    __slots__ = ("by_tag",)

    def __init__(self, payload: bytes) -> None:
        by_tag: dict[int, list[bytes]] = {}
        self.by_tag = by_tag
        at, end = 0, len(payload)
        unpack = _FIELD.unpack_from
        while at < end:
            if end - at < _FIELD_HEADER_BYTES:
                raise ProtocolError(f"{end - at} trailing bytes after the last field")
            tag, length = unpack(payload, at)
            at += _FIELD_HEADER_BYTES
            if length > end - at:
                raise ProtocolError(f"field {tag} of {length} bytes runs past the frame's end")
            value = payload[at : at + length]
            if tag in by_tag:
                by_tag[tag].append(value)
            else:
                by_tag[tag] = [value]
            at += length

    def __contains__(self, tag: int) -> bool:
        return tag in self.by_tag

    def raw(self, tag: Tag, size: int | None = None) -> bytes:
        """Returns the one value; of exactly `size` bytes if that is given."""
        values = self.by_tag.get(tag)
        if values is None:
            raise ProtocolError(f"field {tag.name} is missing")
        if len(values) != 1:
            raise ProtocolError(f"field {tag.name} is there {len(values)} times")
        if size is not None and len(values[0]) != size:
            raise ProtocolError(f"field {tag.name} has {len(values[0])} bytes, not {size}")
        return values[0]

    def u64(self, tag: Tag, low: int = 0, high: int = NUMBER_MAX) -> int:
        """Returns the one number, which must lie within low..high."""
        value: int = _U64.unpack(self.raw(tag, 8))[0]
        if not low <= value <= high:
            raise ProtocolError(f"field {tag.name}: {value} is not within {low}..{high}")
        return value

    def flag(self, tag: Tag) -> bool:
        """Returns whether the number is 1; it must be 0 or 1."""
        return self.u64(tag, 0, 1) == 1

    def word(self, tag: Tag, size_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        """Returns the one value, without NUL and not longer than `size_max`."""
        return _check_word(tag, self.raw(tag), size_max)

    def text(self, tag: Tag, size_max: int = TEXT_BYTES_MAX) -> str:
        """Returns the one text; what is no UTF-8 becomes surrogate escapes."""
        return self.word(tag, size_max).decode("utf-8", "surrogateescape")

    def raws(self, tag: Tag) -> tuple[bytes, ...]:
        """Returns all values in order, none if the tag is absent."""
        return tuple(self.by_tag.get(tag, ()))

    def words(self, tag: Tag) -> tuple[bytes, ...]:
        """Returns all values in order, each without NUL."""
        return tuple(_check_word(tag, value, PAYLOAD_BYTES_MAX) for value in self.raws(tag))

    def texts(self, tag: Tag) -> tuple[str, ...]:
        """Returns all values in order, each as text."""
        return tuple(value.decode("utf-8", "surrogateescape") for value in self.words(tag))

    def numbers(self, tag: Tag) -> tuple[int, ...]:
        """Returns all values in order, each as a number of exactly 8 bytes."""
        values = self.raws(tag)
        if any(len(value) != 8 for value in values):
            raise ProtocolError(f"field {tag.name}: a number has exactly 8 bytes")
        return tuple(_U64.unpack(value)[0] for value in values)


def _check_word(tag: Tag, value: bytes, size_max: int) -> bytes:
    if len(value) > size_max:
        raise ProtocolError(f"field {tag.name} has {len(value)} bytes, at most {size_max}")
    if b"\0" in value:
        raise ProtocolError(f"field {tag.name} holds a NUL")
    return value


class Kind(Enum):
    """How an attribute of a Body is written; the plural ones are lists of repeated fields."""

    NUMBER = "number"
    FLAG = "flag"
    RAW = "raw"
    WORD = "word"
    TEXT = "text"
    NUMBERS = "numbers"
    RAWS = "raws"
    WORDS = "words"
    TEXTS = "texts"


_NUMBER: Final = Kind.NUMBER
_FLAG: Final = Kind.FLAG


class Part(NamedTuple):
    """One attribute of a Body: its tag, kind, bounds, and whether it may be absent (None)."""

    name: str
    tag: Tag
    kind: Kind
    low: int = 0  # of a number; of raw bytes: the exact size, 0 for any
    high: int = NUMBER_MAX  # of a number; of words and text: the longest
    optional: bool = False


def number(
    name: str, tag: Tag, low: int = 0, high: int = NUMBER_MAX, *, optional: bool = False
) -> Part:
    """Returns a part that is a number within low..high."""
    return Part(name, tag, Kind.NUMBER, low, high, optional)


def flag(name: str, tag: Tag, *, optional: bool = False) -> Part:
    """Returns a part that is 0 or 1."""
    return Part(name, tag, Kind.FLAG, 0, 1, optional)


def raw(name: str, tag: Tag, size: int = 0, *, optional: bool = False) -> Part:
    """Returns a part that is bytes, of exactly `size` if that is not 0."""
    return Part(name, tag, Kind.RAW, size, optional=optional)


def word(name: str, tag: Tag, *, optional: bool = False) -> Part:
    """Returns a part that is bytes without NUL."""
    return Part(name, tag, Kind.WORD, 0, PAYLOAD_BYTES_MAX, optional)


def text(name: str, tag: Tag, size_max: int = TEXT_BYTES_MAX, *, optional: bool = False) -> Part:
    """Returns a part that is text; bytes that are no UTF-8 are surrogate escapes."""
    return Part(name, tag, Kind.TEXT, 0, size_max, optional)


def several(name: str, tag: Tag, kind: Kind) -> Part:
    """Returns a part that is a tuple, written as a repeated field; it may be empty."""
    return Part(name, tag, kind)


class Body(msgspec.Struct, frozen=True):
    """A payload with a name. `parse(x.payload()) == x` for every x that passes `check`."""

    PARTS: ClassVar[tuple[Part, ...]] = ()
    # Made of PARTS, once a class: how each is written; the numbers by tag; what must be there.
    _writers: ClassVar[tuple[tuple[str, int, Any], ...]] = ()
    _numbers: ClassVar[dict[int, tuple[str, int, int, bool]]] = {}
    _mandatory: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        parts = cls.PARTS
        cls._writers = tuple((part.name, int(part.tag), _WRITE[part.kind]) for part in parts)
        cls._numbers = {
            int(part.tag): (part.name, part.low, part.high, part.kind is _FLAG)
            for part in parts
            if part.kind in (_NUMBER, _FLAG)
        }
        lists = (Kind.NUMBERS, Kind.RAWS, Kind.WORDS, Kind.TEXTS)
        cls._mandatory = frozenset(
            part.name for part in parts if not part.optional and part.kind not in lists
        )

    def payload(self) -> bytes:
        """Returns the fields; raises InvalidRequest if a value cannot be sent."""
        out = FieldBuilder()
        for name, tag, write in self._writers:
            value = getattr(self, name)
            if value is not None:
                write(out, tag, value)
        return out.payload()

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Returns the value; raises ProtocolError."""
        numbers = cls._only_numbers(payload)
        if numbers is not None:
            return numbers
        fields = Fields(payload)
        by_tag = fields.by_tag
        values: dict[str, Any] = {}
        for part in cls.PARTS:
            name, tag, kind, low, high, optional = part
            found = by_tag.get(tag)
            if found is None:
                if optional:
                    continue
            elif (kind is _NUMBER or kind is _FLAG) and len(found) == 1 and len(found[0]) == 8:
                value = int.from_bytes(found[0], "little")  # nearly all parts are numbers
                if low <= value <= high:
                    values[name] = value if kind is _NUMBER else value == 1
                    continue
            values[name] = _read(fields, part)
        body = cls(**values)
        body.check()
        return body

    @classmethod
    def _only_numbers(cls, payload: bytes) -> Self | None:
        """Returns the value of a payload of known numbers, each once and in range; else None.

        Nearly all frames of a command are of this kind. What is anything else, and every error, is
        the general way's to tell.
        """
        if not payload or len(payload) % _FIELD_U64.size:
            return None
        values: dict[str, Any] = {}
        numbers = cls._numbers
        for tag, length, value in _FIELD_U64.iter_unpack(payload):
            known = numbers.get(tag)
            if length != 8 or known is None:
                return None
            name, low, high, is_flag = known
            if not low <= value <= high or name in values:
                return None
            values[name] = value == 1 if is_flag else value
        if not cls._mandatory <= values.keys():
            return None
        body = cls(**values)
        body.check()
        return body

    def check(self) -> None:
        """Raises ProtocolError if the values do not fit together."""


class Message(Body, frozen=True):
    """Base of the guest channel's messages; `CODE` is the frame type."""

    CODE: ClassVar[GuestFrame]


def _several(write: Any) -> Any:
    def write_all(out: FieldBuilder, tag: int, values: tuple[Any, ...]) -> None:
        for value in values:
            write(out, tag, value)

    return write_all


_WRITE: Final[dict[Kind, Any]] = {
    Kind.NUMBER: FieldBuilder.u64,
    Kind.FLAG: FieldBuilder.u64,
    Kind.RAW: FieldBuilder.raw,
    Kind.WORD: FieldBuilder.word,
    Kind.TEXT: FieldBuilder.text,
    Kind.NUMBERS: _several(FieldBuilder.u64),
    Kind.RAWS: _several(FieldBuilder.raw),
    Kind.WORDS: _several(FieldBuilder.word),
    Kind.TEXTS: _several(FieldBuilder.text),
}


def _read(fields: Fields, part: Part) -> Any:
    kind, tag = part.kind, part.tag
    if kind is Kind.NUMBER:
        return fields.u64(tag, part.low, part.high)
    if kind is Kind.FLAG:
        return fields.flag(tag)
    if kind is Kind.RAW:
        return fields.raw(tag, part.low or None)
    if kind is Kind.WORD:
        return fields.word(tag, part.high)
    if kind is Kind.TEXT:
        return fields.text(tag, part.high)
    return getattr(fields, kind.value)(tag)
