"""How content stands in events, and that a request's digest does not depend on it."""

import hashlib

from skerry.spec import trajectory
from skerry.spec.command import CommandSpec


def digest(data):
    return hashlib.sha256(data).hexdigest()


def test_text_stands_as_text_and_other_bytes_as_base64():
    assert trajectory.content(b"gr\xc3\xbcn") == {"bytes": 5, "text": "grün"}
    odd = trajectory.content(b"\xff\x00")
    assert odd == {"bytes": 2, "base64": "/wA="}
    assert trajectory.content_bytes(odd) == b"\xff\x00"


def test_digest_of_a_request_does_not_depend_on_where_its_content_is():
    data = b"x" * 10_000
    held = [
        trajectory.content(data),
        {"bytes": len(data), "blob": digest(data)},
        {"bytes": len(data), "dropped": True, "sha256": digest(data)},
    ]
    assert all(trajectory.is_content(one) for one in held)
    digests = {trajectory.request_digest({"path": "/a", "content": one}) for one in held}
    assert len(digests) == 1
    other = trajectory.request_digest({"path": "/a", "content": trajectory.content(b"y" * 10_000)})
    assert other not in digests


def test_digest_of_a_request_does_not_depend_on_the_order_of_its_fields():
    one = trajectory.request_digest({"a": 1, "b": {"c": [1, 2], "d": None}})
    assert one == trajectory.request_digest({"b": {"d": None, "c": [1, 2]}, "a": 1})
    assert one == trajectory.request_digest({"a": 1.0, "b": {"c": [1.0, 2], "d": None}})
    assert one != trajectory.request_digest({"a": 1, "b": {"c": [2, 1], "d": None}})


def test_what_a_caller_named_like_content_is_not_mistaken_for_it():
    assert not trajectory.is_content({"bytes": 3, "text": "abc", "other": 1})
    assert not trajectory.is_content({"bytes": "3", "text": "abc"})
    assert not trajectory.is_content({"text": "abc"})
    assert not trajectory.is_content({"bytes": 3, "text": "abc", "blob": "00"})


def test_a_struct_becomes_plain_json_with_its_bytes_as_content():
    spec = CommandSpec(argv=("cat",), stdin=b"in")
    assert trajectory.as_json(spec) == {"argv": ["cat"], "stdin": {"bytes": 2, "text": "in"}}


def test_long_contents_are_found_and_what_only_looks_like_one_is_not():
    blob = {"bytes": 5, "blob": "a" * 64}
    labels = {"blob": "b" * 64}
    path = {"blob": "../../etc/passwd", "bytes": 1}
    value = {
        "request": {"content": blob, "labels": labels, "path": path},
        "list": [blob, {"bytes": 1, "text": ""}],
    }
    assert list(trajectory.blobs_of(value)) == ["a" * 64, "a" * 64]
