"""The text of a recipe, cut into instructions: lines, continuations, comments and here-documents.

A recipe is a file of the Dockerfile language (https://docs.docker.com/reference/dockerfile/). What
the instructions mean is decided in `skerry.spec.recipe`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from skerry.errors import InvalidRequest

TEXT_BYTES_MAX = 1 << 20
INSTRUCTIONS_MAX = 500
_NESTED_MAX = 100
NEWER_BYTES_MAX = 1 << 20  # of one line after its variables were put in

_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.*?)\s*")
_HEREDOC = re.compile(r"<<(-?)([\"']?)([a-zA-Z_][a-zA-Z0-9_.]*)\2")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TAKES_DOCUMENTS = {"RUN", "COPY"}


class Document(NamedTuple):
    """A here-document: its name, what it holds, and whether variables in it stay as they are."""

    name: str
    content: str
    quoted: bool


class Instruction(NamedTuple):
    """One instruction; `line` counts from 1 and is where it begins."""

    line: int
    word: str  # in capitals
    rest: str  # continuations joined, comments removed, not yet interpreted
    documents: tuple[Document, ...] = ()


def fault(line: int, text: str) -> InvalidRequest:
    """Returns the error that names a line of the recipe."""
    return InvalidRequest(f"recipe, line {line}: {text}", line=line)


def escape_of(text: str) -> str:
    """Returns the character that escapes, which a directive at the top may change to a backtick."""
    for line in text.splitlines():
        found = _DIRECTIVE.fullmatch(line.strip())
        if found is None:
            break
        if found[1].lower() == "escape":
            if found[2] not in ("\\", "`"):
                raise fault(1, f"escape={found[2]!r}: it must be \\ or `")
            return found[2]
    return "\\"


def instructions(text: str) -> tuple[Instruction, ...]:
    """Returns all instructions in order; InvalidRequest, with the line, for what is none."""
    if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise InvalidRequest(f"recipe: more than {TEXT_BYTES_MAX} bytes")
    if "\x00" in text:
        raise InvalidRequest("recipe: it holds a NUL")
    lines = text.removeprefix("\ufeff").splitlines()
    escape = escape_of(text)
    found: list[Instruction] = []
    at = 0
    while at < len(lines):
        if _is_silent(lines[at]):
            at += 1
            continue
        first = at
        joined, at = _joined(lines, at, escape)
        word, _, rest = joined.strip().partition(" ")
        word, rest = word.upper(), rest.strip()
        documents: tuple[Document, ...] = ()
        if word in _TAKES_DOCUMENTS:
            documents, at = _documents(lines, at, rest, first + 1)
        found.append(Instruction(first + 1, word, rest, documents))
        if len(found) > INSTRUCTIONS_MAX:
            raise fault(first + 1, f"more than {INSTRUCTIONS_MAX} instructions")
    return tuple(found)


def _is_silent(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _joined(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """Returns an instruction's lines as one, and the line after it."""
    parts: list[str] = []
    while at < len(lines):
        line = lines[at]
        at += 1
        if parts and _is_silent(line):
            continue
        body = line.rstrip()
        if not body.endswith(escape):
            parts.append(line if parts else line.lstrip())
            break
        parts.append(body[:-1] if parts else body[:-1].lstrip())
    return "".join(parts).replace("\t", " ", 1), at


def _documents(lines: list[str], at: int, rest: str, line: int) -> tuple[tuple[Document, ...], int]:
    documents = []
    for dash, quote, name in _HEREDOC.findall(rest):
        body: list[str] = []
        while True:
            if at == len(lines):
                raise fault(line, f"the here-document {name} has no end")
            text = lines[at].lstrip("\t") if dash else lines[at]
            at += 1
            if text == name:
                break
            body.append(text + "\n")
        documents.append(Document(name, "".join(body), bool(quote)))
    return tuple(documents), at


def without_documents(rest: str) -> str:
    """Returns the arguments with the marks of here-documents taken out."""
    return _HEREDOC.sub("", rest).strip()


def expand(text: str, values: Mapping[str, str], escape: str, line: int) -> str:
    """Puts variables in: $NAME, ${NAME}, ${NAME:-WORD}, ${NAME:+WORD}; quotes stay as they are.

    Within single quotes and after the escape nothing is put in. Unknown names give nothing.
    """
    out: list[str] = []
    at, quote = 0, ""
    while at < len(text):
        char = text[at]
        if char == escape and quote != "'" and at + 1 < len(text):
            out.append(text[at + 1] if text[at + 1] == "$" else text[at : at + 2])
            at += 2
        elif char == "$" and quote != "'":
            value, at = _variable(text, at, values, escape, line)
            out.append(value)
        else:
            if char in "\"'" and quote in ("", char):
                quote = "" if quote else char
            out.append(char)
            at += 1
    result = "".join(out)
    if len(result) > NEWER_BYTES_MAX:
        raise fault(line, "it grows too long when its variables are put in")
    return result


def _variable(
    text: str, at: int, values: Mapping[str, str], escape: str, line: int
) -> tuple[str, int]:
    if text[at + 1 : at + 2] != "{":
        found = _NAME.match(text, at + 1)
        if found is None:
            return "$", at + 1
        return values.get(found[0], ""), found.end()
    end = _closing(text, at + 2)
    if end < 0:
        raise fault(line, "${ without }")
    inner = text[at + 2 : end]
    if inner.count("${") > _NESTED_MAX:
        raise fault(line, f"more than {_NESTED_MAX} variables in the words of one")
    found = _NAME.match(inner)
    if found is None:
        raise fault(line, f"${{{inner[:40]}}}: no name of a variable")
    name, rest = found[0], inner[found.end() :]
    value = values.get(name, "")
    if rest.startswith(":-"):
        value = value or expand(rest[2:], values, escape, line)
    elif rest.startswith(":+"):
        value = expand(rest[2:], values, escape, line) if value else ""
    elif rest:
        raise fault(line, f"${{{inner[:40]}}}: only ${{NAME}}, :- and :+ are known")
    return value, end + 1


def _closing(text: str, at: int) -> int:
    depth = 1
    for place in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place
    return -1


def words(text: str, escape: str, line: int) -> tuple[str, ...]:
    """Cuts into words as a shell does, quotes and escapes taken away."""
    found: list[str] = []
    current: list[str] = []
    open_word, quote, at = False, "", 0
    while at < len(text):
        char = text[at]
        if char == escape and quote != "'" and at + 1 < len(text):
            at += 1
            current.append(text[at])
            open_word = True
        elif char == quote:
            quote = ""
        elif quote or not (char in "\"'" or char.isspace()):
            current.append(char)
            open_word = True
        elif char.isspace():
            if open_word:
                found.append("".join(current))
            current, open_word = [], False
        else:
            quote, open_word = char, True
        at += 1
    if quote:
        raise fault(line, f"a {quote} is not closed")
    if open_word:
        found.append("".join(current))
    return tuple(found)
