"""What went wrong at an object store, in words that say whose fault it is and what to do.

obstore tells little by the type of its errors; the rest stands in their text (status, the server's own
code and message, the kind of a network error). Only these are taken from it, bounded: never headers,
and never a server's copy of what was signed.
"""

from __future__ import annotations

import re
import ssl
from typing import NamedTuple

from skerry.errors import StorageFailed

MESSAGE_MAX = 160
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>|\(code: ([A-Za-z0-9.]{1,60})\)")
_MESSAGE = re.compile(r"<Message>([^<]{1,400})</Message>")
_KIND = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode|Unknown)")
_OS = re.compile(r'message: "([^"]{1,80})"|error: "([^"]{1,80})"')

_CLOCK = {"RequestTimeTooSkewed", "RequestExpired"}
_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
_BUSY = {"SlowDown", "ServiceUnavailable", "TooManyRequests", "RequestTimeout", "Busy"}
_BUSY |= {"OperationAborted", "ConditionalRequestConflict"}
_REGION = {"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"}
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity", "StorageFull"}

# What an operator does about it. Reasons are stable: they stand in an error's field `reason`.
REMEDIES = {
    "unreachable": "nothing answers there: is s3.endpoint right, and is the store up?",
    "timeout": "it answers too slowly: look at its load and at the network",
    "cut": "the connection broke off: look at the network between node and store",
    "busy": "it asks to be asked less often: give it more capacity, or the node a lower rate",
    "server": "the fault is the store's: see its own log",
    "keys": "it does not accept these keys: see s3.access_key and s3.secret_key",
    "denied": "the keys lack the right: allow get, put, list and delete below the prefix",
    "clock": "the clocks differ too much: set the time of node and store (NTP)",
    "bucket": "there is no such bucket: make it, or correct `store`",
    "region": "s3.region is another one than the bucket's",
    "full": "it has no room: free some, or raise the quota",
    "endpoint": "what answers there speaks no S3: is s3.endpoint right (http or https, port)?",
    "damaged": "what came was cut off or damaged on its way: look at the network",
    "refused": "the store does not take such a request: does it know what Skerry needs of S3?",
}
_PASSING = {"unreachable", "timeout", "cut", "busy", "server", "damaged"}


class Trouble(NamedTuple):
    """One failed request."""

    reason: str
    said: str  # what the store or the network said

    @property
    def passing(self) -> bool:
        """Whether asking again may help."""
        return self.reason in _PASSING

    def error(self, what: str, where: str, tries: int = 1) -> StorageFailed:
        """Returns the error for the caller: what was being done, what happened, what to do."""
        again = f" after {tries} tries" if tries > 1 else ""
        return StorageFailed(
            f"{what}: {where}: {self.said}{again}; {REMEDIES[self.reason]}",
            reason=self.reason,
            tries=tries,
        )


def of_obstore(error: Exception) -> Trouble:
    """Returns what an exception of obstore says."""
    text = str(error)
    status = _STATUS.search(text)
    code, message = _server_words(text)
    if status is not None or code:
        return of_answer(int(status[1]) if status else 403, code, message)
    if "redirect" in text[:200].lower():  # Amazon's answer to a request in the wrong region
        return Trouble("region", "it redirects to another place")
    kind = _KIND.search(text)
    told = _OS.search(text)
    detail = f" ({(told[1] or told[2]).lower()})" if told else ""
    match kind[1] if kind else "":
        case "Connect":
            if "certificate" in text.lower() or "InvalidMessage" in text:
                return Trouble("endpoint", "no TLS connection that can be trusted")
            return Trouble("unreachable", f"cannot connect{detail}")
        case "Timeout":
            return Trouble("timeout", "no answer in time")
        case "Interrupted":
            return Trouble("cut", f"connection lost{detail}")
        case _:
            return Trouble("damaged", "the answer cannot be read")


def of_answer(status: int, code: str, message: str) -> Trouble:
    """Returns what an HTTP status other than a good one says, with an S3 error's code and message."""
    said = f"HTTP {status}" + (f" {code}" if code else "") + (f" ({message})" if message else "")
    if code in _CLOCK:
        reason = "clock"
    elif code in _KEYS or status == 401:
        reason = "keys"
    elif code == "NoSuchBucket":
        reason = "bucket"
    elif code in _FULL or status == 507:
        reason = "full"
    elif code in _REGION or status in (301, 307):
        reason = "region"
    elif code in _BUSY or status in (408, 425, 429, 503):
        reason = "busy"
    elif status == 403:
        reason = "denied"
    elif status >= 500 and status != 501:
        reason = "server"
    elif not code and status in (400, 404, 405):
        reason = "endpoint"
    else:
        reason = "refused"
    return Trouble(reason, said)


def of_body(status: int, body: bytes) -> Trouble:
    """The same from an error's body."""
    return of_answer(status, *_server_words(body[:4096].decode("utf-8", "replace")))


def of_os(error: OSError) -> Trouble:
    """Returns what a failed connection of our own says."""
    detail = (error.strerror or type(error).__name__).lower()[:MESSAGE_MAX]
    if isinstance(error, ssl.SSLError):
        return Trouble("endpoint", "no TLS connection that can be trusted")
    if isinstance(error, TimeoutError):
        return Trouble("timeout", "no answer in time")
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return Trouble("cut", f"connection lost ({detail})")
    return Trouble("unreachable", f"cannot connect ({detail})")


def _server_words(text: str) -> tuple[str, str]:
    code, message = _CODE.search(text), _MESSAGE.search(text)
    words = message[1].strip()[:MESSAGE_MAX] if message else ""
    return (code[1] or code[2]) if code else "", words
