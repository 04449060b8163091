"""Requests to S3 are signed, repeated and redirected, and their errors are explained."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import pickle
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.helpers.clock import FakeClock

from windlass.stores.errors import (
    Altered,
    Busy,
    Changed,
    Denied,
    Forbidden,
    Missing,
    MissingBucket,
    NoAnswer,
    NoLogin,
    StoreError,
    Unconfirmed,
)
from windlass.stores.part_sizes import STREAM_PART_BYTES
from windlass.stores.retry import TRIES, repeated
from windlass.stores.s3 import bucket as bucket_module
from windlass.stores.s3.bucket import Bucket, BucketResponse
from windlass.stores.s3.signature import EMPTY, Keys, query_of, signed
from windlass.stores.s3.store import S3Store
from windlass.stores.store import Object
from windlass.train.checkpoint.opening import open_folder

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}
MAY_24_2013 = 1369353600.0
Answered = tuple[int, dict[str, str], bytes]


def test_requests_are_signed_as_the_examples_of_aws() -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""
    keys = Keys(*KEYS.values())
    host, ranged = "examplebucket.s3.amazonaws.com", {"range": "bytes=0-9"}
    get = signed(keys, "us-east-1", host, "GET", "/test.txt", "", ranged, EMPTY, MAY_24_2013)
    assert get["authorization"].endswith("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")
    query = query_of({"prefix": "J", "max-keys": "2"})
    listing = signed(keys, "us-east-1", host, "GET", "/", query, {}, EMPTY, MAY_24_2013)
    assert listing["authorization"].endswith("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")
    assert keys.secret_key not in repr(keys)


class Scripted(ThreadingHTTPServer):
    """Server that answers each request with the next scripted response: status, headers and body."""

    def __init__(self, answers: Sequence[Answered]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    def next(self, asked: Mapping[str, str]) -> Answered:
        """Returns the next response; for concurrent writes, the first one that confirms the requested write."""
        wanted = next((asked[name] for name in asked if name.lower() == "x-amz-checksum-sha256"), None)
        fits = [one for one in self.answers if wanted and one[1].get("x-amz-checksum-sha256") == wanted]
        found = (fits or self.answers)[0]
        self.answers.remove(found)
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        assert isinstance(self.server, Scripted)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, self.path, {name.lower(): at for name, at in self.headers.items()}))
        status, headers, body = self.server.next(dict(self.headers.items()))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - the names that the library calls

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


@contextlib.contextmanager
def answering(*answers: Answered) -> Iterator[tuple[Bucket, Scripted, list[float]]]:
    """Yields a bucket whose store gives these responses, the server, and the pauses that the bucket makes."""
    clock = FakeClock()
    with Scripted(answers) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("windlass.stores.retry.time", clock)
        patch.setattr("windlass.stores.connection.time", clock)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            environ = {**KEYS, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.server_port}"}
            bucket = Bucket("runs", environ)
            yield bucket, server, clock.waits
        finally:
            bucket.close()
            server.shutdown()
            thread.join()


def send(bucket: Bucket, method: str, key: str, **fields: Any) -> BucketResponse:
    """Sends a request with repetitions; `answering` records the pauses."""
    return repeated(lambda: bucket.send(method, key, **fields))


def store_of(bucket: Bucket) -> S3Store:
    found = S3Store(bucket.name, KEYS)
    found._bucket = bucket
    return found


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>words</Message></Error>".encode()


def test_requests_to_busy_store_are_repeated_with_increasing_pauses() -> None:
    busy: Answered = (503, {}, error("SlowDown"))
    with answering(busy, busy, (200, {}, b"data")) as (bucket, server, pauses):
        assert send(bucket, "GET", "a b").body == b"data"
        assert [path for _, path, _ in server.asked] == ["/runs/a%20b"] * 3
        assert (len(pauses), 0.05 <= pauses[0] < pauses[1] * 3) == (2, True)


def test_request_to_permanently_busy_store_fails_with_its_message() -> None:
    with answering(*[(503, {}, error("SlowDown"))] * TRIES) as (bucket, _, pauses):
        with pytest.raises(Busy, match=r"s3://runs/key: the store answered 503 SlowDown words"):
            send(bucket, "GET", "key")
        assert len(pauses) == TRIES - 1


def test_hint_about_address_is_given_only_if_store_never_answered() -> None:
    with answering((200, {"Connection": "close"}, b"data")) as (bucket, server, _):
        send(bucket, "GET", "key")
        port = server.server_port
    with pytest.raises(Busy) as away:
        bucket.send("GET", "key")
    with pytest.raises(NoAnswer, match=f"127.0.0.1:{port}: the server does not answer: Connection refused"):
        Bucket("runs", {**KEYS, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}"}).send("GET", "key")
    assert type(away.value) is Busy


def test_hint_about_address_is_given_after_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NoAnswer, match=f"{address}: the server does not answer: TimeoutError"):
            Bucket("runs", {**KEYS, "AWS_ENDPOINT_URL_S3": f"http://{address}"}).send("GET", "key")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", Missing),
        (404, "NoSuchBucket", MissingBucket),
        (403, "AccessDenied", Forbidden),
        (401, "", Denied),
        (412, "PreconditionFailed", Changed),
        (400, "InvalidRequest", StoreError),
    ],
)
def test_request_with_permanent_error_is_sent_once(status: int, code: str, kind: type[StoreError]) -> None:
    with answering((status, {}, error(code))) as (bucket, server, pauses):
        with pytest.raises(kind) as caught:
            send(bucket, "GET", "key")
        assert (type(caught.value), len(server.asked), pauses) == (kind, 1, [])
        assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)


def test_response_before_end_of_body_is_read() -> None:
    refusal = error("NoSuchBucket")
    head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(refusal)}\r\n\r\n".encode()

    def refuse(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1)
            connection.sendall(head + refusal)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=refuse, args=(listening,))
        thread.start()
        environ = {**KEYS, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        with pytest.raises(MissingBucket, match="there is no bucket runs"):
            Bucket("runs", environ).send("PUT", "key", body=bytes(32 << 20))
        thread.join()


def test_object_is_streamed_in_pieces_and_truncated_body_is_busy() -> None:
    cut: Answered = (200, {"Content-Length": "9", "Connection": "close"}, b"12345678")
    with answering((200, {}, b"12345678"), cut) as (bucket, _, _):
        assert list(bucket.stream("key", {}, 3)) == [b"123", b"456", b"78"]
        came = bucket.stream("key", {}, 4)
        assert [next(came), next(came)] == [b"1234", b"5678"]
        with pytest.raises(Busy, match="the connection broke"):
            next(came)


def test_rest_of_abandoned_body_is_not_in_next_response() -> None:
    with answering((200, {}, b"12345678"), (200, {}, b"next"), (404, {}, error("NoSuchKey"))) as (bucket, server, _):
        left = bucket.stream("key", {}, 4)
        assert next(left) == b"1234"
        assert send(bucket, "GET", "key").body == b"next"
        del left
        with pytest.raises(Missing):
            next(bucket.stream("key", {}, 4))
        assert len(server.asked) == 3


def confirmed(body: bytes) -> dict[str, str]:
    """Returns the headers of a store that contains an object with this content."""
    return {"ETag": '"e"', "x-amz-checksum-sha256": base64.b64encode(hashlib.sha256(body).digest()).decode()}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "no ETag"),
        ({"ETag": '"e"'}, "did not confirm the SHA-256"),
        (confirmed(b"other"), "confirmed the SHA-256 2SmKENG"),
    ],
)
def test_unconfirmed_write_fails(fields: dict[str, str], words: str) -> None:
    with answering((200, fields, b"<html/>")) as (bucket, _, _), pytest.raises(Unconfirmed, match=words):
        send(bucket, "PUT", "key", body=b"data")


def test_body_altered_in_transit_is_sent_again_twice() -> None:
    altered: Answered = (400, {}, error("BadDigest"))
    with answering(altered, altered, (200, confirmed(b"data"), b"")) as (bucket, _, _):
        send(bucket, "PUT", "key", body=b"data")
    with answering(*[altered] * 3) as (bucket, server, _):
        with pytest.raises(Altered, match="changed on their way"):
            send(bucket, "PUT", "key", body=b"data")
        assert len(server.asked) == 3


HTML: Answered = (200, {"Content-Type": "text/html"}, b"<html>Please log in</html>")
BEGUN: Answered = (200, {}, b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
PARTS = [bytes(STREAM_PART_BYTES), b"last"]


def composite() -> str:
    parts = b"".join(hashlib.sha256(one).digest() for one in PARTS)
    return f"{base64.b64encode(hashlib.sha256(parts).digest()).decode()}-2"


def completed(checksum: str) -> bytes:
    words = f"<ETag>e</ETag><ChecksumSHA256>{checksum}</ChecksumSHA256>" if checksum else "<ETag>e</ETag>"
    return f"<CompleteMultipartUploadResult>{words}</CompleteMultipartUploadResult>".encode()


@pytest.mark.parametrize(
    ("ends", "refused"),
    [
        ([HTML], "the answer to the completion of an upload is a html"),
        ([(200, {}, completed("other-2"))], "confirmed the SHA-256 other-2"),
        ([(200, {}, completed(composite()))], ""),
        # The response to the first completion was lost, so the object itself is requested.
        ([(404, {}, error("NoSuchUpload")), (200, {"ETag": '"e"', "x-amz-checksum-sha256": composite()}, b"")], ""),
        ([(200, {}, completed("")), (200, {"ETag": '"e"', "x-amz-checksum-sha256": composite()}, b"")], ""),
        ([(404, {}, error("NoSuchUpload")), HTML], "no ETag"),
        ([(200, {}, completed("")), (200, {"ETag": '"e"'}, b"")], "did not confirm"),
    ],
)
def test_an_upload_is_complete_once_the_store_confirms_the_digests_of_its_parts(
    ends: list[Answered], refused: str
) -> None:
    asked = [BEGUN, *((200, confirmed(one), b"") for one in PARTS), *ends, (204, {}, b"")]
    outcome = pytest.raises(Unconfirmed, match=refused) if refused else contextlib.nullcontext()
    with answering(*asked) as (bucket, _, _), outcome:
        store_of(bucket).write("key", PARTS)


def test_retry_after_is_respected() -> None:
    busy: Answered = (429, {"Retry-After": "7"}, b"")
    with answering(busy, (200, {}, b"data")) as (bucket, _, pauses):
        assert send(bucket, "GET", "key").body == b"data"
        assert pauses[0] < 1, "that of any request that is repeated"
        assert 6 < pauses[1] <= 7


def test_retry_after_applies_to_all_threads_and_is_bounded() -> None:
    with answering((503, {"Retry-After": "86400"}, b""), (200, {}, b"data")) as (bucket, _, pauses):
        with pytest.raises(Busy):
            bucket.send("GET", "one")
        bucket.send("GET", "other")
        assert 290 < pauses[0] <= 300


def test_wrong_clock_is_corrected_by_store_time() -> None:
    ahead = email.utils.formatdate(time.time() + 3600, usegmt=True)
    skewed: Answered = (403, {"Date": ahead}, error("RequestTimeTooSkewed"))
    with answering(skewed, (200, {}, b"one"), (200, {}, b"two")) as (bucket, server, pauses):
        assert [send(bucket, "GET", "key").body for _ in range(2)] == [b"one", b"two"]
        signed_at = [fields["x-amz-date"][:11] for _, _, fields in server.asked]
        assert signed_at[0] != signed_at[1] == signed_at[2]
        assert pauses == []


@pytest.mark.parametrize(
    "date",
    [
        "Wed, 31 Feb 99999 00:00:00 GMT",
        "Wed, 21 Oct 999999999999 07:28:00 GMT",
        "Wed, 21 Oct 2026 07:28:00 +99999999999999999999",
        "-5",
        "soon",
        "",
    ],
)
def test_invalid_date_changes_neither_clock_nor_pauses(date: str) -> None:
    """A response of a proxy in front of a store must not cause an internal error."""
    busy: Answered = (503, {"Retry-After": date}, b"")
    denied: Answered = (403, {"Date": date}, error("AccessDenied"))
    with answering(busy, denied) as (bucket, _, pauses):
        with pytest.raises(Forbidden):
            send(bucket, "GET", "key")
        assert len(pauses) == 1, "that of any request that is repeated"


def test_denied_object_and_denied_keys_raise_different_errors() -> None:
    answer: Answered
    for answer in ((403, {}, error("InvalidObjectState")), (403, {}, b"")):
        with answering(answer) as (bucket, _, _), pytest.raises(Forbidden):
            send(bucket, "GET", "key")
    for answer in ((403, {}, error("InvalidAccessKeyId")), (401, {}, b""), (400, {}, error("ExpiredToken"))):
        with answering(answer) as (bucket, _, _), pytest.raises(Denied) as caught:
            send(bucket, "GET", "key")
        assert not isinstance(caught.value, Forbidden)


def test_head_error_without_reason_may_be_expired_token() -> None:
    expired = pytest.raises(Forbidden, match="the token may have expired")
    with answering((400, {}, b"")) as (bucket, _, _), expired:
        send(bucket, "HEAD", "key")


def test_expired_keys_are_reported_as_expired() -> None:
    with answering((400, {}, error("ExpiredToken"))) as (bucket, _, _), pytest.raises(Denied, match="ExpiredToken"):
        send(bucket, "GET", "key")


def test_the_region_that_a_bucket_names_is_used() -> None:
    other: Answered = (301, {"x-amz-bucket-region": "eu-central-1"}, error("PermanentRedirect"))
    with answering(other, (200, {}, b"one"), (200, {}, b"two")) as (bucket, server, _):
        assert [send(bucket, "GET", "key").body for _ in range(2)] == [b"one", b"two"]
        regions = [headers["authorization"].split("/")[2] for _, _, headers in server.asked]
        assert regions == ["us-east-1", "eu-central-1", "eu-central-1"]


def test_a_listing_of_several_pages_is_one() -> None:
    page = "<ListBucketResult xmlns='http://s3'><Contents><Key>{}</Key><Size>1</Size></Contents>{}</ListBucketResult>"
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t=1</NextContinuationToken>"
    with answering((200, {}, page.format("a", more).encode()), (200, {}, page.format("b", "").encode())) as at:
        assert [one.key for one in store_of(at[0]).listed("") if not isinstance(one, str)] == ["a", "b"]
        assert "continuation-token=t%3D1" in at[1].asked[1][1]


def test_no_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(Denied, match="no credentials for AWS were found: set AWS_ACCESS_KEY_ID"):
        Bucket("runs", {}).send("GET", "key")


def test_a_bucket_is_pickled_without_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    data = pickle.dumps(Bucket("runs"))
    assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in data
    assert pickle.loads(data).name == "runs"


@pytest.mark.parametrize("address", ["s3://", "s3:///a", "gs://", "http://host/a"])
def test_invalid_store_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="s3://BUCKET/PREFIX"):
        open_folder(address)


def test_reason_of_refused_head_is_read_with_get() -> None:
    expired: Answered = (400, {}, error("ExpiredToken"))
    with answering((400, {}, b""), expired) as (bucket, server, _):
        with pytest.raises(NoLogin, match="ExpiredToken"):
            send(bucket, "HEAD", "key")
        assert [(method, asked.get("range")) for method, _, asked in server.asked] == [
            ("HEAD", None),
            ("GET", "bytes=0-0"),
        ]
    with (
        answering((400, {}, b""), (206, {"Content-Range": "bytes 0-0/1"}, b"x")) as (bucket, _, _),
        pytest.raises(Forbidden, match="the token may have expired"),
    ):
        send(bucket, "HEAD", "key")


@pytest.mark.parametrize(
    ("status", "fields", "body", "kind"),
    [
        (200, {"ETag": '"1"'}, b"0123456789", Busy),
        (200, {"ETag": '"1"', "Content-Length": "10"}, b"0", Busy),
        (206, {"ETag": '"1"', "Content-Range": "bytes 0-2/10"}, b"012", Busy),
        (206, {"ETag": '"1"'}, b"012", Busy),
        (206, {"ETag": '"2"', "Content-Range": "bytes 2-4/10"}, b"abc", Changed),
        (206, {"Content-Range": "bytes 2-4/10"}, b"abc", Changed),
    ],
)
def test_no_byte_is_read_from_a_response_with_another_range_or_version(
    status: int, fields: dict[str, str], body: bytes, kind: type[StoreError]
) -> None:
    """Caches and gateways that ignore `Range` or `If-Match` send the start of the object, or another object."""
    one, answer = Object("key", 10, '"1"'), (status, {"Connection": "close", **fields}, body)
    with answering(answer, answer) as (bucket, _, _):
        came: list[bytes] = []
        with pytest.raises(StoreError) as streamed:
            came.extend(map(bytes, store_of(bucket).stream(one, 2, 3)))
        with pytest.raises(StoreError) as read:
            store_of(bucket).read_once(one, 2, 3)
    assert (came, type(streamed.value), type(read.value)) == ([], kind, kind)


def test_ignored_range_is_requested_again() -> None:
    right = (206, {"ETag": '"1"', "Content-Range": "bytes 2-4/10"}, b"234")
    with answering((200, {"ETag": '"1"', "Connection": "close"}, b"0123456789"), right) as (bucket, _, _):
        store, one = store_of(bucket), Object("key", 10, '"1"')
        assert repeated(lambda: b"".join(map(bytes, store.stream(one, 2, 3)))) == b"234"
