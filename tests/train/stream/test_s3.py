"""Possible responses of a store, from a scripted server: regions, unusual headers, and closed connections."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from windlass.stores.s3.store import S3Store
from windlass.train.stream.errors import Busy, SourceChanged, StreamError
from windlass.train.stream.opening import open_source
from windlass.train.stream.reader import Reader, Span
from windlass.train.stream.source import Object, StoreSource

ONE = Object("a.txt", 10, '"1"')


class Store:
    """Server that sends scripted responses, each a status, headers and a body; None closes the connection."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes] | None] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.num_connections = 0
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                store.num_connections += 1
                super().setup()

            def do_GET(self) -> None:
                store.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                answer = store.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, body = answer
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,)).start()

    def source(self, **environ: str) -> StoreSource:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "not-to-be-told"}
        endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        return StoreSource(S3Store("bucket", {**keys, "AWS_ENDPOINT_URL_S3": endpoint, **environ}), "set")


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.server.shutdown()
    made.server.server_close()


def whole(etag: str = '"1"', **headers: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {"ETag": etag, **headers}, b"0123456789"


def flipped() -> tuple[int, dict[str, str], bytes]:
    return 200, {"ETag": '"1"'}, b"0123456788"


def test_object_that_does_not_match_its_manifest_is_read_three_times(store: Store) -> None:
    one = replace(ONE, digest=f"sha256:{hashlib.sha256(b'0123456789').hexdigest()}")
    reader = Reader(store.source(), lambda _number: one, None)
    store.answers = [flipped(), flipped(), whole()]
    assert reader.read([Span(0, 0, 10)]) == [b"0123456789"]
    store.answers = [flipped()] * 3
    with pytest.raises(StreamError, match="does not match its manifest"):
        reader.read([Span(0, 0, 10)])
    assert len(store.asked) == 6


def test_connection_is_reused_and_reopened_if_the_store_closed_it(store: Store) -> None:
    source = store.source()
    store.answers = [whole(), whole(), None, whole()]
    assert [source.read(ONE, 0, 10) for _ in range(3)] == [b"0123456789"] * 3
    assert store.num_connections == 2
    headers = store.asked[0][1]
    assert headers["if-match"] == '"1"'
    assert "not-to-be-told" not in str(store.asked)


def test_partial_read_requests_a_range(store: Store) -> None:
    store.answers = [(206, {"ETag": '"1"', "Content-Range": "bytes 2-4/10"}, b"234")]
    assert store.source().read(ONE, 2, 3) == b"234"
    assert store.asked[0][1]["range"] == "bytes=2-4"


def test_bucket_in_another_region_is_requested_there(store: Store) -> None:
    source = store.source(AWS_REGION="us-east-1")
    refusal = b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>"
    store.answers = [(400, {"x-amz-bucket-region": "eu-west-1"}, refusal), whole(), whole()]
    assert source.read(ONE, 0, 10) == source.read(ONE, 0, 10) == b"0123456789"
    regions = [headers["authorization"].split("/")[2] for _, headers in store.asked]
    assert regions == ["us-east-1", "eu-west-1", "eu-west-1"]


def test_invalid_region_name_is_not_used_as_host(store: Store) -> None:
    store.answers = [(400, {"x-amz-bucket-region": "x.example.org/"}, b"")]
    with pytest.raises(StreamError, match="answered 400"):
        store.source().read(ONE, 0, 10)
    assert len(store.asked) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (whole('"2"'), SourceChanged),
        ((412, {}, b""), SourceChanged),
        ((404, {}, b""), SourceChanged),
        ((200, {"ETag": '"1"'}, b"longer than it was"), SourceChanged),
        ((206, {"ETag": '"1"'}, b"short"), Busy),
        ((200, {"ETag": '"1"', "Content-Length": "99"}, b"0123456789"), Busy),
        ((503, {}, b"<Error><Code>SlowDown</Code></Error>"), Busy),
        ((429, {}, b""), Busy),
        ((400, {}, b"<Error><Code>RequestTimeout</Code></Error>"), Busy),
        ((403, {}, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"), StreamError),
        (None, Busy),
    ],
)
def test_responses_are_distinguished(
    store: Store, answer: tuple[int, dict[str, str], bytes] | None, error: type[StreamError]
) -> None:
    store.answers = [answer]
    if answer is not None:
        answer[1]["Connection"] = "close"
    with pytest.raises(StreamError) as raised:
        store.source().read(ONE, 0, 10)
    assert type(raised.value) is error


def test_chunked_body_is_read(store: Store) -> None:
    chunks = b"4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n"
    store.answers = [(200, {"ETag": '"1"', "Transfer-Encoding": "chunked"}, chunks), whole()]
    store.answers[0][1].pop("Content-Length", None)  # type: ignore[index]
    assert store.source().read(ONE, 0, 10) == b"0123456789"


def test_missing_keys_are_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(StreamError, match="no credentials for AWS were found"):
        store.source(AWS_ACCESS_KEY_ID="").read(ONE, 0, 10)


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://store"])
def test_invalid_endpoint_is_refused(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    with pytest.raises(StreamError, match=r"write http://host:port"):
        open_source("s3://bucket/set")
