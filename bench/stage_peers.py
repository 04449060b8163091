"""The tools beside which `stage.py` measures, each as a command that copies a folder to S3 or back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import BIN, CACHE, peers
from tests.helpers import golang
from tests.helpers.golang import GoModule

S5CMD = GoModule(Path(__file__).with_name("go-s5cmd"), "s5cmd (a minute)", ("github.com/peak/s5cmd/v2",))
AWS_ENV = "aws-env"
BOTO3 = """
import os, sys
from pathlib import Path
import boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager

way, folder, bucket, prefix = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
client = boto3.client("s3")
with create_transfer_manager(client, TransferConfig()) as manager:
    if way == "up":
        found = [one for one in folder.rglob("*") if one.is_file()]
        waiting = [manager.upload(str(one), bucket, f"{prefix}/{one.relative_to(folder)}") for one in found]
    else:
        waiting = []
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
            for one in page["Contents"]:
                path = folder / one["Key"][len(prefix) + 1 :]
                path.parent.mkdir(parents=True, exist_ok=True)
                waiting.append(manager.download(bucket, one["Key"], str(path)))
    for one in waiting:
        one.result()
"""
OBSTORE = """
import asyncio, os, sys
from pathlib import Path
import obstore
from obstore.store import S3Store

way, folder, bucket, prefix = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
store = S3Store(bucket, endpoint=endpoint, virtual_hosted_style_request=False, client_options={"allow_http": True})


async def up(path):
    await obstore.put_async(store, f"{prefix}/{path.relative_to(folder)}", path)


async def down(key):
    path = folder / key[len(prefix) + 1 :]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        async for piece in (await obstore.get_async(store, key)).stream():
            file.write(piece)


async def main():
    if way == "up":
        one, found = up, [one for one in folder.rglob("*") if one.is_file()]
    else:
        one, found = down, [one["path"] for one in obstore.list(store, prefix).collect()]
    waiting = iter(found)

    async def work():
        for each in waiting:
            await one(each)

    await asyncio.gather(*[work() for _ in range(16)])


asyncio.run(main())
os._exit(0)  # obstore's threads abort an interpreter that ends while they let go of the last answer
"""


@dataclass(frozen=True)
class Tool:
    """A way to copy."""

    copy: Callable[[str, Path, str], list[str | Path]]
    """The command, of `up` or `down`, a folder and a prefix in the bucket."""
    again: Callable[[Path, str], list[str | Path]] | None = None
    """The command that uploads what has changed since, where that is another one."""


def s3(bucket: str, prefix: str) -> str:
    return f"s3://{bucket}/{prefix}/"


def windlass(bucket: str) -> Tool:
    def copy(way: str, folder: Path, prefix: str) -> list[str | Path]:
        words = [folder, s3(bucket, prefix)]
        return [BIN / "windlass", "data", "copy", *(words if way == "up" else reversed(words)), "-o", "json"]

    return Tool(copy, lambda folder, prefix: copy("up", folder, prefix))


def tools(
    bucket: str, endpoint: str, scripts: Path, only: Sequence[str] = (), *, only_built: bool
) -> tuple[dict[str, Tool], list[str]]:
    """Those whose name contains one of the words of `only`, all if there are none: s5cmd first, as all others are
    compared with it; and those that are not built, where none is to be.

    Neither s5cmd nor obstore verifies what it fetches; aws and boto3 compare CRCs where S3 keeps them.
    """
    found, skipped = {}, []
    names = ("s5cmd", "windlass", "aws s3 sync", "boto3", "obstore")
    chosen = [name for name in names if not only or any(word in name for word in only)]
    if "s5cmd" in chosen:
        if only_built and not S5CMD.is_built():
            skipped.append("s5cmd")
        else:
            golang.build([S5CMD])
            found["s5cmd"] = _s5cmd(bucket, endpoint)
    if "windlass" in chosen:
        found["windlass"] = windlass(bucket)
    if "aws s3 sync" in chosen:
        if only_built and not (CACHE / AWS_ENV / "packages.json").exists():
            skipped.append("aws s3 sync")
        else:
            found["aws s3 sync"] = _aws(bucket, peers("awscli", env=AWS_ENV) / "aws")
    for name, script in (("boto3", BOTO3), ("obstore", OBSTORE)):
        if name in chosen:
            (scripts / f"{name}-copy.py").write_text(script)
            found[name] = _script(scripts / f"{name}-copy.py", bucket)
    return found, skipped


def _s5cmd(bucket: str, endpoint: str) -> Tool:
    program: list[str | Path] = [S5CMD.program("s5cmd"), "--endpoint-url", endpoint]

    def copy(way: str, folder: Path, prefix: str) -> list[str | Path]:
        if way == "up":
            return [*program, "cp", f"{folder}/", s3(bucket, prefix)]
        return [*program, "cp", f"{s3(bucket, prefix)}*", f"{folder}/"]

    return Tool(copy, lambda folder, prefix: [*program, "sync", f"{folder}/", s3(bucket, prefix)])


def _aws(bucket: str, program: Path) -> Tool:
    def copy(way: str, folder: Path, prefix: str) -> list[str | Path]:
        words = [folder, s3(bucket, prefix)]
        return [program, "s3", "sync", "--only-show-errors", *(words if way == "up" else reversed(words))]

    return Tool(copy, lambda folder, prefix: copy("up", folder, prefix))


def _script(script: Path, bucket: str) -> Tool:
    return Tool(lambda way, folder, prefix: [BIN / "python", script, way, folder, bucket, prefix])
