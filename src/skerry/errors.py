"""Every error that Skerry raises, drawn as one tree; each class says whose fault it is.

    SkerryError
    ├── CallerError               the request cannot be served as asked; asking again changes nothing
    │   ├── InvalidRequest        malformed or out of bounds
    │   ├── Unauthorized          no valid token
    │   ├── RegistryDenied        a registry wants other credentials for an image
    │   ├── NotFound              no such sandbox, operation, image, file
    │   ├── Conflict              the thing exists already, or its state forbids the call
    │   └── Diverged              a rollout that is run again asks for something else (fields: ordinal)
    ├── SandboxError              what runs inside, or the image, is at fault
    │   ├── SandboxFailed         it did not start, or died
    │   ├── FileRefused           a file operation was refused inside (fields: errno, path)
    │   │   ├── FileDenied        the user has no right to it: the caller's fault
    │   │   └── DiskFull          the sandbox's own disk, or its quota, is full
    │   ├── PortRefused           nothing answers on a port inside (fields: errno, port)
    │   └── ImageBroken           a layer, or what is to become one, is unusable
    ├── PlatformError             Skerry or its machines are at fault; safe to try again
    │   ├── Overloaded            an admission limit answered (fields: limit, retry_after_s)
    │   ├── Unavailable           node, launcher or backend cannot be reached or used
    │   ├── StorageFailed         disk full, store unreachable
    │   │   └── ObjectDamaged     what stands in a store in an object's place is none
    │   ├── LayerDamaged          what a store holds of a layer is not what its digest says
    │   ├── ContentDropped        a recorded answer is needed whose content was too long to be kept
    │   └── OutcomeUnknown        the operation may or may not have run; it is never re-run silently
    └── Bug                       an invariant of Skerry does not hold

Exit statuses, timeouts that the caller asked for, and missing programs are results, not errors.
Only platform errors and bugs may be dropped from training data, and none may read as reward 0.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar


class Fault(StrEnum):
    """Whose fault an error is."""

    CALLER = "caller"
    SANDBOX = "sandbox"
    PLATFORM = "platform"
    BUG = "bug"


class SkerryError(Exception):
    """Base of all errors; `code` is stable and is what the wire carries, with `fields`."""

    code: ClassVar[str] = "error"
    fault: ClassVar[Fault] = Fault.BUG
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = fields


class CallerError(SkerryError):
    """The request cannot be served as asked."""

    code = "caller"
    fault = Fault.CALLER
    http_status = 400


class InvalidRequest(CallerError):
    """A value is malformed or out of bounds; the message names it."""

    code = "invalid"
    http_status = 422


class Unauthorized(CallerError):
    """No valid bearer token came with the request."""

    code = "unauthorized"
    http_status = 401


class RegistryDenied(CallerError):
    """A registry refuses the credentials that were given for an image, or wants some."""

    code = "registry_denied"
    http_status = 403


class NotFound(CallerError):
    """No such sandbox, operation, image or file."""

    code = "not_found"
    http_status = 404


class Conflict(CallerError):
    """The thing exists already, or its state forbids the call."""

    code = "conflict"
    http_status = 409


class Diverged(CallerError):
    """A rollout that is run again asks for something else than it did when it was recorded.

    Fields: `sandbox`, `ordinal` (of the operation, from 0), `recorded` and `asked`, each with `action`
    and `request`. The message shows both. With `no_branch`, a branch was asked for: it says why there
    can be none.
    """

    code = "diverged"
    http_status = 409


class SandboxError(SkerryError):
    """What runs inside the sandbox, or its image, is at fault."""

    code = "sandbox"
    fault = Fault.SANDBOX
    http_status = 400


class SandboxFailed(SandboxError):
    """The sandbox did not start, or died; fields say at which step.

    With the field `lost` nobody inside is to blame: it was ended from outside (deleted, stopped, its
    time was over), or its host lost it. That is not to be graded.
    """

    code = "sandbox_failed"
    http_status = 410


class FileRefused(SandboxError):
    """A file operation was refused inside; `errno` and `path` are in the fields."""

    code = "file_refused"
    http_status = 400


class PortRefused(SandboxError):
    """Nothing answers on a port inside; `errno` and `port` are in the fields."""

    code = "port_refused"
    http_status = 400


class FileDenied(FileRefused):
    """The user for whom a file operation was done has no right to it (EACCES, EPERM, EROFS)."""

    code = "file_denied"
    fault = Fault.CALLER
    http_status = 403


class DiskFull(FileRefused):
    """The sandbox's disk or its quota is full (ENOSPC, EDQUOT); what was there before is unchanged."""

    code = "disk_full"
    http_status = 507


class ImageBroken(SandboxError):
    """A layer is damaged, or is not what its name promises."""

    code = "image_broken"
    http_status = 422


class PlatformError(SkerryError):
    """Skerry or the machines under it are at fault; the request may be tried again."""

    code = "platform"
    fault = Fault.PLATFORM
    http_status = 503
    retryable = True


class Overloaded(PlatformError):
    """An admission limit answered; fields: `limit` (which one) and `retry_after_s`."""

    code = "overloaded"
    http_status = 429


class Unavailable(PlatformError):
    """A node, launcher or backend cannot be reached or cannot work here."""

    code = "unavailable"


class StorageFailed(PlatformError):
    """A disk is full or a store cannot be reached."""

    code = "storage_failed"
    http_status = 507


class ObjectDamaged(StorageFailed):
    """In a store, what stands in an object's place is no file: a directory, a FIFO, a link.

    Only who can write to the store's disk has made it so. Fields: `key` and `found`, what it is.
    """

    code = "object_damaged"


class LayerDamaged(PlatformError):
    """Stored bytes of a layer are not those that its digest names; fields: `digest`, maybe `chunk`.

    The store, its disk or the way from there is at fault, not who uses the layer.
    """

    code = "layer_damaged"


class ContentDropped(PlatformError):
    """A recorded answer cannot be given again: its content was too long for the record.

    The message says what to do; fields: `bytes`, `sha256`.
    """

    code = "content_dropped"
    http_status = 410
    retryable = False


class OutcomeUnknown(PlatformError):
    """The instance or its host was lost while the operation ran: it may have had effects."""

    code = "outcome_unknown"
    http_status = 502
    retryable = False


class Bug(SkerryError):
    """An invariant of Skerry does not hold: please report it."""

    code = "bug"


# Closed table from wire code to class: the wire never carries a class path.
BY_CODE: dict[str, type[SkerryError]] = {
    cls.code: cls
    for cls in (
        CallerError,
        InvalidRequest,
        Unauthorized,
        RegistryDenied,
        NotFound,
        Conflict,
        Diverged,
        SandboxError,
        SandboxFailed,
        FileRefused,
        FileDenied,
        DiskFull,
        PortRefused,
        ImageBroken,
        PlatformError,
        Overloaded,
        Unavailable,
        StorageFailed,
        ObjectDamaged,
        LayerDamaged,
        ContentDropped,
        OutcomeUnknown,
        Bug,
    )
}


def from_code(code: str, message: str, fields: dict[str, Any]) -> SkerryError:
    """Returns the error that a peer named; an unknown code becomes a Bug that quotes it."""
    cls = BY_CODE.get(code)
    if cls is None:
        return Bug(f"the peer sent an unknown error code {code!r}: {message}", **fields)
    return cls(message, **fields)
