"""What can be asked of one change: the words in which the table of rules is written. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping

from skerry.integrity import protected as names
from skerry.integrity.protected import Rules
from skerry.spec.files import Change, ChangeKind, FileType
from skerry.spec.task import is_within

READABLE_DIRECTORY = 0o555
PATH_BYTES_MAX = 4096
SET_ID = 0o6000

Fact = Callable[[Change, Rules], bool]


def _malformed(change: Change, rules: Rules) -> bool:
    del rules
    path = change.path
    parts = path.split("/")[1:]
    clean = path.startswith("/") and "\x00" not in path and len(path) <= PATH_BYTES_MAX
    return path != "/" and not (clean and not any(part in {"", ".", ".."} for part in parts))


def _no_text(change: Change, rules: Rules) -> bool:
    del rules
    names_of = f"{change.path}{change.target or ''}"
    if names_of.isascii():
        return False
    # Bytes that are no UTF-8 stand as surrogates, or as U+FFFD where they came over the wire: then
    # this is not the file's name.
    return "\ufffd" in names_of or any("\ud800" <= letter <= "\udfff" for letter in names_of)


def _inside(change: Change, rules: Rules) -> bool:
    return rules.inside(change.path) is not None


def _workbench(change: Change, rules: Rules) -> bool:
    return (rules.inside(change.path) or "").split("/")[0] in names.WORKBENCH


def _readable(change: Change, rules: Rules) -> bool:
    del rules
    return change.mode & READABLE_DIRECTORY == READABLE_DIRECTORY


def _pristine(change: Change, rules: Rules) -> bool:
    known = rules.pristine.get(change.path)
    return (
        change.type is FileType.FILE
        and change.mode & 0o444 == 0o444
        and known is not None
        and known == change.digest
    )


def _read_by_pytest(change: Change, rules: Rules) -> bool:
    # pytest looks from its arguments upwards: in the workdir, above it, and in test directories.
    where = posixpath.dirname(change.path)
    return is_within(rules.workdir, where) or any(is_within(test, where) for test in rules.tests)


def _found_from_workdir(change: Change, rules: Rules) -> bool:
    return _inside(change, rules) or is_within(rules.workdir, posixpath.dirname(change.path))


def _in_library(change: Change, rules: Rules) -> bool:
    del rules
    return names.is_library_path(change.path)


def _installed_module(change: Change, rules: Rules) -> bool:
    return names.installed_module(change.path) in rules.modules


def _loads_c_library(change: Change, rules: Rules) -> bool:
    del rules
    path = change.path
    return names.is_c_library(path) and (
        names.is_library_path(path) or path.startswith("/usr/local/lib/")
    )


def _shadows_module(change: Change, rules: Rules) -> bool:
    if posixpath.dirname(change.path) not in rules.import_roots:
        return False
    importable = change.type is not FileType.FILE or change.path.endswith((".py", ".so", ".pyc"))
    return importable and names.module_name(change.path) in rules.modules


def _report_place(change: Change, rules: Rules) -> bool:
    places = (*rules.reports, *names.REPORT_DIRS)
    return any(
        is_within(change.path, place) or is_within(place, change.path) for place in places
    ) or names.is_report(change.path, rules)


def _resolved(change: Change) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(change.path), change.target or ""))


def _leaves(change: Change, rules: Rules) -> bool:
    return not change.target or rules.inside(_resolved(change)) is None


def _to_protected(change: Change, rules: Rules) -> bool:
    return rules.is_protected(_resolved(change))


def _source_lost(change: Change, rules: Rules) -> bool:
    # A link that stays inside is a source like another one.
    return rules.is_source(change.path) and (
        change.type is not FileType.SYMLINK
        or _leaves(change, rules)
        or _to_protected(change, rules)
    )


def _test(change: Change, rules: Rules) -> bool:
    return any(is_within(change.path, root) or is_within(root, change.path) for root in rules.tests)


FACTS: Mapping[str, Fact] = {
    "malformed": _malformed,
    "no_text": _no_text,
    "in_workdir": _inside,
    "workbench": _workbench,
    "residue": lambda change, _: not names.RESIDUE.isdisjoint(change.path.split("/")),
    "above_protected": lambda change, rules: rules.is_above_protected(change.path),
    "protected": lambda change, rules: rules.is_protected(change.path),
    "named_protected": lambda change, rules: change.path in rules.protected,
    "test": _test,
    "pristine": _pristine,
    "readable": _readable,
    "conftest": lambda change, _: names.module_name(change.path) == "conftest",
    "startup_module": lambda change, _: names.is_startup_module(change.path),
    "config_name": lambda change, _: posixpath.basename(change.path) in names.CONFIG_NAMES,
    "read_by_pytest": _read_by_pytest,
    "found_from_workdir": _found_from_workdir,
    "program_dir": lambda change, _: change.path in names.PROGRAM_DIRS,
    "program": lambda change, _: names.is_program_path(change.path),
    "trusted_program": lambda change, _: names.is_trusted_program(change.path),
    "known_tool": lambda change, _: names.is_known_tool(change.path),
    "c_library": _loads_c_library,
    "library": _in_library,
    "python_library": lambda change, _: names.python_library(change.path) is not None,
    "installed_module": _installed_module,
    "shadows_module": _shadows_module,
    "scratch_name": lambda change, _: names.module_name(change.path) in names.SCRATCH_MODULES,
    "report": lambda change, rules: names.is_report(change.path, rules),
    "report_place": _report_place,
    "source": lambda change, rules: rules.is_source(change.path),
    "source_lost": _source_lost,
    "leaves": _leaves,
    "to_protected": _to_protected,
    "set_id": lambda change, _: bool(change.mode & SET_ID),
    "sample": lambda change, _: change.path.endswith(".sample"),
    "added_or_file": lambda change, _: (
        change.kind is not ChangeKind.MODIFIED or change.type is not FileType.DIRECTORY
    ),
}
