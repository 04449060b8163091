"""Pods stage sets from an S3 server and upload outputs to it, with Python alone and through kills."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from tests.helpers.until import until
from tests.servers.emulated_roles import emulated_roles
from tests.servers.faulty import FaultProxy
from tests.servers.s3 import S3Server
from tests.storage.pods import Pods
from tests.storage.sets import Data, Shape, assert_equal, names, write_set

from windlass.stores.part_sizes import COPY_PART_BYTES
from windlass.stores.s3.store import PIECE_BYTES

pytestmark = pytest.mark.slow
SHAPE = Shape(40, 100_000, 1, 40_000_000)


@pytest.fixture
def data(tmp_path: Path, server: S3Server) -> Data:
    """The command on this machine, connected without the proxy."""
    return Data(tmp_path / "home", server)


@pytest.fixture
def pods(tmp_path: Path, server: S3Server, proxy: FaultProxy) -> Pods:
    return Pods(tmp_path, server.environ(proxy.endpoint))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_set(tmp_path / "source", SHAPE)


@pytest.fixture
def there(data: Data, source: Path, bucket: str) -> str:
    """Uploads the set to a bucket, with its manifest."""
    data.json("copy", str(source), f"s3://{bucket}/set")
    return f"s3://{bucket}/set/"


class Stopped:
    """Blocks all data after a number of bytes, and then drops it."""

    def __init__(self, proxy: FaultProxy, at: int) -> None:
        self.is_reached, self._over = threading.Event(), threading.Event()
        self._proxy, self._at = proxy, at
        proxy.passed = self._pass

    def _pass(self, num_bytes: int) -> None:
        if num_bytes >= self._at:
            self.is_reached.set()
            self._over.wait(250)
            raise ConnectionError("the client was killed")

    def end(self) -> None:
        """Closes the connections of the killed client and lets the next client's data pass."""
        self._over.set()
        until(lambda: self._proxy.num_open == 0, "the connections of a killed pod stay open")
        self._proxy.passed = lambda _num_bytes: None


def num_written(root: Path) -> int:
    """Returns the bytes in files of a set that is being staged, from the journals of its large files."""
    [files] = root.glob("staging/*/files")
    whole = sum((files / name).stat().st_size for name in names(files))
    parts: dict[str, int] = {}
    for journal in files.glob(".windlass/partial/*.parts"):
        for line in journal.read_text().rpartition("\n")[0].splitlines()[1:]:
            number, _, rest = line.partition(" ")
            parts[number] = int(rest[1:]) if rest.startswith("+") else parts[number]
    return whole + sum(parts.values())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)])
def test_killed_pod_resumes_inside_large_file(
    data: Data, pods: Pods, proxy: FaultProxy, source: Path, there: str, number: int, code: int
) -> None:
    stopped = Stopped(proxy, 28_000_000)
    pod = pods.stage(there)
    assert stopped.is_reached.wait(250)
    # Data that has passed is being written to disk, except for less than a piece per request.
    until(lambda: num_written(pods.root) >= proxy.num_bytes - 5 * PIECE_BYTES - 2_500_000)
    pod.popen.send_signal(number)
    ended = pod.ended()
    assert (ended.code, ended.outcome) == (code, None), ended.err
    stopped.end()
    again = pods.stage(there).ended()
    assert (again.code, again.err) == (0, "")
    [line] = again.outcome["results"]
    assert SHAPE.num_bytes <= proxy.num_bytes <= 1.1 * SHAPE.num_bytes
    assert line["moved"] < SHAPE.num_bytes / 2
    assert line["digest"] == data.json("stage", there)["digest"] == data.json("ls", there)["digest"]
    assert_equal(source, pods.link())
    proxy.reset()
    [later] = pods.stage(there, "r-2").ended().outcome["results"]
    assert (later, proxy.num_bytes) == ({**line, "moved": 0}, 0)


def test_two_pods_at_once_fetch_a_set_once(pods: Pods, proxy: FaultProxy, source: Path, there: str) -> None:
    ended = [pod.ended() for pod in [pods.stage(there, run) for run in ("r-1", "r-2")]]
    assert [one.code for one in ended] == [0, 0]
    assert sorted(one.outcome["results"][0]["moved"] for one in ended) == [0, SHAPE.num_bytes]
    assert proxy.num_bytes == SHAPE.num_bytes
    assert_equal(source, pods.link("r-1"))
    assert pods.link("r-1").resolve() == pods.link("r-2").resolve()


def test_an_upload_that_is_killed_sends_no_part_twice(
    data: Data, pods: Pods, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    shape, to, back = Shape(40, 100_000, 1, 120_000_000), f"s3://{bucket}/runs/r-1/", tmp_path / "back"
    made = write_set(tmp_path / "output", shape)
    stopped = Stopped(proxy, 80_000_000)
    pod = pods.upload(made, to)
    assert stopped.is_reached.wait(250)
    pod.popen.kill()
    pod.ended()
    stopped.end()
    [line] = (ended := pods.upload(made, to).ended()).outcome["results"]
    assert (ended.code, line["refused"], line["bytes"]) == (0, [], shape.num_bytes)
    assert line["moved"] <= shape.num_bytes - 2 * COPY_PART_BYTES
    taken = [one.query["partNumber"][0] for one in proxy.data if "partNumber" in one.query and one.status == 200]
    assert len(taken) == len(set(taken)), "a part was taken twice"
    verified = data.json("verify", to)
    assert (verified["ok"], verified["digest"]) == (True, line["digest"])
    data.json("copy", to, str(back))
    assert_equal(made, back)
    assert pods.upload(made, to).ended().outcome["results"] == [{**line, "moved": 0}]


def test_missing_outputs_are_uploaded_as_empty_set(data: Data, pods: Pods, bucket: str) -> None:
    ended = pods.upload(Path("/nothing"), f"s3://{bucket}/runs/r-1/").ended()
    assert (ended.code, ended.outcome["results"][0]["files"]) == (0, 0)
    listed = data.json("ls", f"s3://{bucket}/runs/r-1/")
    assert (listed["files"], listed["digest"]) == ([], ended.outcome["results"][0]["digest"])


@pytest.mark.parametrize("name", ["large-0.bin", "small/3/00003.bin"])
def test_a_set_with_a_damaged_object_is_not_staged(
    pods: Pods, server: S3Server, there: str, bucket: str, name: str
) -> None:
    with open(server.folder / bucket / "set" / name, "r+b") as file:
        file.write(b"rot")
    ended = pods.stage(there).ended()
    assert (ended.code, ended.err) == (64, "")
    assert f"{name}: damaged at its source" in ended.outcome["error"]
    assert not pods.link().exists()


def test_wrong_or_missing_keys_are_reported_once(pods: Pods, server: S3Server, there: str) -> None:
    wrong = pods.stage(there, AWS_SECRET_ACCESS_KEY="wrong").ended()
    assert (wrong.code, wrong.outcome["hint"]) == (64, "check the credentials, and what they may do")
    assert "SignatureDoesNotMatch" in wrong.outcome["error"]
    none = pods.stage(there, AWS_SECRET_ACCESS_KEY="").ended()
    assert none.code == 64
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the pod a role" in none.outcome["error"]
    for ended in (wrong, none):
        assert (ended.err, ended.lines) == ("", [ended.outcome])
        assert server.secret_key not in str(ended)


def test_missing_bucket_is_named(pods: Pods, source: Path) -> None:
    for pod in (pods.stage("s3://nothing/set"), pods.upload(source, "s3://nothing/set")):
        ended = pod.ended()
        assert ended.code == 64
        assert "there is no bucket nothing" in ended.outcome["error"]


def test_the_role_of_a_service_account_is_enough(
    pods: Pods, server: S3Server, source: Path, there: str, tmp_path: Path
) -> None:
    """STS is emulated, and returns the keys of the S3 server."""
    (tmp_path / "token").write_text("token")
    with emulated_roles() as roles:
        roles.given = (server.access_key, server.secret_key, "")
        ended = pods.stage(
            there,
            AWS_ACCESS_KEY_ID="",
            AWS_SECRET_ACCESS_KEY="",
            AWS_ENDPOINT_URL_STS=roles.address,
            AWS_ROLE_ARN="arn:aws:iam::1:role/r",
            AWS_WEB_IDENTITY_TOKEN_FILE=str(tmp_path / "token"),
        ).ended()
        assert (ended.code, ended.err) == (0, "")
        assert len(roles.asked) == 1
    assert_equal(source, pods.link())


@pytest.mark.parametrize(
    ("where", "environ", "words"),
    [
        ("no-such-bucket", {}, "there is no bucket no-such-bucket"),
        ("", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
        ("", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_pod_asks_beforehand_whether_outputs_can_be_uploaded(
    pods: Pods, bucket: str, where: str, environ: dict[str, str], words: str
) -> None:
    done = pods.check(f"s3://{bucket}/runs/r-1/").ended()
    assert (done.code, done.outcome) == (0, {"results": [{"checked": f"s3://{bucket}/runs/r-1/"}]})
    refused = pods.check(f"s3://{where or bucket}/runs/r-1/", **environ).ended()
    assert (refused.code, words in str(refused.outcome)) == (64, True), refused.outcome


def test_check_passes_if_store_does_not_answer_in_time(pods: Pods, bucket: str) -> None:
    endpoint = "http://127.0.0.1:1"
    assert pods.check(f"s3://{bucket}/runs/", AWS_ENDPOINT_URL=endpoint, AWS_ENDPOINT_URL_S3=endpoint).ended().code == 0
