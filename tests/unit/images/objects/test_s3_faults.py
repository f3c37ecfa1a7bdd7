"""What an operator is told of a failed request: the reason, and whether it is asked again."""

from __future__ import annotations

import socket
import ssl

import pytest

from skerry.errors import Fault, StorageFailed
from skerry.images.objects import s3_faults
from skerry.images.objects.patience import FIRST_WAIT_S, WAIT_MAX_S, Failed, Patience
from skerry.images.objects.s3_faults import REMEDIES, Trouble


@pytest.mark.parametrize(
    ("status", "code", "reason", "passing"),
    [
        (503, "SlowDown", "busy", True),
        (429, "", "busy", True),
        (409, "ConditionalRequestConflict", "busy", True),
        (500, "InternalError", "server", True),
        (502, "", "server", True),
        (504, "", "server", True),
        (501, "NotImplemented", "refused", False),
        (403, "AccessDenied", "denied", False),
        (403, "", "denied", False),
        (403, "InvalidAccessKeyId", "keys", False),
        (403, "SignatureDoesNotMatch", "keys", False),
        (400, "ExpiredToken", "keys", False),
        (403, "RequestTimeTooSkewed", "clock", False),
        (404, "NoSuchBucket", "bucket", False),
        (301, "PermanentRedirect", "region", False),
        (400, "AuthorizationHeaderMalformed", "region", False),
        (507, "", "full", False),
        (403, "QuotaExceeded", "full", False),
        (404, "", "endpoint", False),
        (400, "EntityTooLarge", "refused", False),
    ],
)
def test_answer_has_a_reason(status: int, code: str, reason: str, passing: bool) -> None:
    trouble = s3_faults.of_answer(status, code, "")
    assert (trouble.reason, trouble.passing) == (reason, passing)
    assert str(status) in trouble.said


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "unreachable"),
        (socket.gaierror(-2, "Name or service not known"), "unreachable"),
        (TimeoutError("timed out"), "timeout"),
        (ConnectionResetError(104, "Connection reset by peer"), "cut"),
        (ssl.SSLCertVerificationError(1, "self-signed certificate"), "endpoint"),
    ],
)
def test_broken_connection_has_a_reason(error: OSError, reason: str) -> None:
    assert s3_faults.of_os(error).reason == reason


def test_error_is_the_platforms_and_says_what_to_do() -> None:
    error = Trouble("clock", "HTTP 403").error("reading a", "s3://b at http://c", 3)
    assert isinstance(error, StorageFailed)
    assert error.fault is Fault.PLATFORM
    assert error.fields == {"reason": "clock", "tries": 3}
    for part in ("reading a", "s3://b at http://c", "HTTP 403", "3 tries", REMEDIES["clock"]):
        assert part in error.message


def test_hostile_answer_is_bounded_and_no_more_than_its_message() -> None:
    body = (
        b"<Error><Code>AccessDenied</Code><Message>" + b"m" * 300 + b"</Message>"
        b"<StringToSign>AWS4 very-private</StringToSign></Error>" + b"x" * 100_000
    )
    trouble = s3_faults.of_body(403, body)
    assert len(trouble.said) < 250
    assert "private" not in trouble.said


class Time:
    """A clock that goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def patience(time: Time, seconds: float) -> Patience:
    return Patience("s3://b", seconds, clock=lambda: time.now, sleep=time.sleep)


def test_passing_failure_is_repeated_until_it_passes() -> None:
    time = Time()

    def work(tries: int) -> str:
        if tries < 4:
            raise Failed(Trouble("busy", "HTTP 503"))
        return f"after {tries}"

    asked = patience(time, 60)
    assert asked.run("reading", work) == "after 4"
    assert asked.repeats == 4
    bounds = [(FIRST_WAIT_S * 2**n / 2, FIRST_WAIT_S * 2**n) for n in range(4)]
    assert all(low <= s <= high for s, (low, high) in zip(time.slept, bounds, strict=True))


def test_repeating_ends_in_time_with_the_last_reason() -> None:
    time = Time()

    def work(_tries: int) -> None:
        raise Failed(Trouble("unreachable", "cannot connect"))

    with pytest.raises(StorageFailed, match="cannot connect") as caught:
        patience(time, 30).run("reading", work)
    assert 30 - WAIT_MAX_S <= time.now <= 30
    assert max(time.slept) <= WAIT_MAX_S
    assert caught.value.fields["tries"] == len(time.slept) + 1


def test_failure_for_good_is_not_repeated() -> None:
    time = Time()

    def work(_tries: int) -> None:
        raise Failed(Trouble("denied", "HTTP 403"))

    with pytest.raises(StorageFailed, match="right"):
        patience(time, 30).run("reading", work)
    assert time.slept == []
