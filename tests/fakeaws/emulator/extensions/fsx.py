"""FSx for Lustre, which ministack lacks: file systems, data repository associations and tasks, backups, tags.

Each description of an object advances its state: CREATING to AVAILABLE, PENDING to EXECUTING to SUCCEEDED, DELETING to
deleted. Tasks move no files. Requests are validated with botocore's model.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from typing import Any, Final, cast

from botocore.validate import ParamValidator
from ministack import app
from ministack.core import iam_actions, router
from ministack.core.responses import AccountRegionScopedDict, get_account_id, get_region
from ministack.services import ec2
from tests.fakeaws.emulator.extensions.shapes import model_of

NEXT = {
    "CREATING": "AVAILABLE",
    "UPDATING": "AVAILABLE",
    "PENDING": "EXECUTING",
    "EXECUTING": "SUCCEEDED",
    "CANCELING": "CANCELED",
    "DELETING": "GONE",
}


class FsxError(Exception):
    """An FSx error: its code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Fsx:
    """The operations of the service by name; objects are stored per account and region."""

    def __init__(self) -> None:
        self.file_systems = AccountRegionScopedDict()
        self.associations = AccountRegionScopedDict()
        self.tasks = AccountRegionScopedDict()
        self.backups = AccountRegionScopedDict()

    def CreateFileSystem(self, body: dict[str, Any]) -> dict[str, Any]:
        name = _new("fs")
        lustre = body.get("LustreConfiguration", {})
        deployment = lustre.get("DeploymentType", "SCRATCH_1")
        subnet = ec2._subnets.get(body["SubnetIds"][0])
        if subnet is None:
            raise FsxError("InvalidNetworkSettings", f"The subnet ID {body['SubnetIds'][0]} is invalid.")
        system = {
            "OwnerId": get_account_id(),
            "CreationTime": time.time(),
            "FileSystemId": name,
            "FileSystemType": body["FileSystemType"],
            "Lifecycle": "CREATING",
            "StorageCapacity": body["StorageCapacity"],
            "StorageType": body.get("StorageType", "SSD"),
            "VpcId": subnet["VpcId"],
            "SubnetIds": body["SubnetIds"],
            "NetworkInterfaceIds": [f"eni-{secrets.token_hex(8)}0"],
            "DNSName": f"{name}.fsx.{get_region()}.amazonaws.com",
            "ResourceARN": _arn(f"file-system/{name}"),
            "FileSystemTypeVersion": body.get("FileSystemTypeVersion", "2.15"),
            "Tags": body.get("Tags", []),
            "LustreConfiguration": _lustre(lustre, deployment),
        }
        if deployment.startswith("PERSISTENT"):
            system["KmsKeyId"] = body.get("KmsKeyId", f"arn:aws:kms:{get_region()}:{get_account_id()}:key/aws-fsx")
        self.file_systems[name] = system
        return {"FileSystem": system}

    def DescribeFileSystems(self, body: dict[str, Any]) -> dict[str, Any]:
        missing = "FileSystemNotFound", "File system '{}' does not exist."
        return {"FileSystems": _described(self.file_systems, body.get("FileSystemIds"), missing)}

    def UpdateFileSystem(self, body: dict[str, Any]) -> dict[str, Any]:
        system = self._system(body["FileSystemId"])
        system["StorageCapacity"] = body.get("StorageCapacity", system["StorageCapacity"])
        changes = {**body.get("LustreConfiguration", {})}
        if "LogConfiguration" in changes:
            system["LustreConfiguration"]["LogConfiguration"] = changes.pop("LogConfiguration")
        system["LustreConfiguration"].update(changes)
        return {"FileSystem": {**system, "Lifecycle": "UPDATING"}}

    def DeleteFileSystem(self, body: dict[str, Any]) -> dict[str, Any]:
        system = self._system(body["FileSystemId"])
        asked = body.get("LustreConfiguration", {})
        deleted = {"FileSystemId": system["FileSystemId"], "Lifecycle": "DELETING"}
        if asked.get("SkipFinalBackup", True) is False:
            backup = self._backup(system, asked.get("FinalBackupTags", []))
            deleted["LustreResponse"] = {"FinalBackupId": backup["BackupId"], "FinalBackupTags": backup["Tags"]}
        system["Lifecycle"] = "DELETING"
        for association in self.associations.values():
            if association["FileSystemId"] == system["FileSystemId"]:
                association["Lifecycle"] = "DELETING"
        return deleted

    def CreateDataRepositoryAssociation(self, body: dict[str, Any]) -> dict[str, Any]:
        system = self._system(body["FileSystemId"])
        if not system["LustreConfiguration"]["DeploymentType"].endswith("2"):
            raise FsxError("BadRequest", "Data repository associations need deployment type SCRATCH_2 or PERSISTENT_2.")
        name = _new("dra")
        association = {
            "AssociationId": name,
            "ResourceARN": _arn(f"association/{system['FileSystemId']}/{name}"),
            "FileSystemId": system["FileSystemId"],
            "Lifecycle": "CREATING",
            "CreationTime": time.time(),
            "FileSystemPath": body.get("FileSystemPath", "/"),
            "DataRepositoryPath": body["DataRepositoryPath"],
            "BatchImportMetaDataOnCreate": body.get("BatchImportMetaDataOnCreate", False),
            "ImportedFileChunkSize": body.get("ImportedFileChunkSize", 1024),
            "S3": body.get("S3", {}),
            "Tags": body.get("Tags", []),
        }
        self.associations[name] = association
        return {"Association": association}

    def DescribeDataRepositoryAssociations(self, body: dict[str, Any]) -> dict[str, Any]:
        missing = "DataRepositoryAssociationNotFound", "Data repository association '{}' does not exist."
        found = _described(self.associations, body.get("AssociationIds"), missing)
        return {"Associations": _filtered(found, body)}

    def UpdateDataRepositoryAssociation(self, body: dict[str, Any]) -> dict[str, Any]:
        association = self._association(body["AssociationId"])
        association.update({field: body[field] for field in ("ImportedFileChunkSize", "S3") if field in body})
        return {"Association": {**association, "Lifecycle": "UPDATING"}}

    def DeleteDataRepositoryAssociation(self, body: dict[str, Any]) -> dict[str, Any]:
        association = self._association(body["AssociationId"])
        association["Lifecycle"] = "DELETING"
        return {"AssociationId": body["AssociationId"], "Lifecycle": "DELETING", "DeleteDataInFileSystem": False}

    def CreateDataRepositoryTask(self, body: dict[str, Any]) -> dict[str, Any]:
        system = self._system(body["FileSystemId"])
        name = _new("task")
        counts = {"TotalCount": 0, "SucceededCount": 0, "FailedCount": 0}
        task = {
            "TaskId": name,
            "Lifecycle": "PENDING",
            "Type": body["Type"],
            "CreationTime": time.time(),
            "ResourceARN": _arn(f"task/{name}"),
            "Tags": body.get("Tags", []),
            "FileSystemId": system["FileSystemId"],
            "Paths": body.get("Paths", []),
            "Report": body["Report"],
            "Status": counts,
        }
        self.tasks[name] = task
        return {"DataRepositoryTask": task}

    def DescribeDataRepositoryTasks(self, body: dict[str, Any]) -> dict[str, Any]:
        missing = "DataRepositoryTaskNotFound", "Data repository task '{}' does not exist."
        found = _described(self.tasks, body.get("TaskIds"), missing)
        return {"DataRepositoryTasks": _filtered(found, body)}

    def CancelDataRepositoryTask(self, body: dict[str, Any]) -> dict[str, Any]:
        task = self.tasks.get(body["TaskId"])
        if task is None:
            raise FsxError("DataRepositoryTaskNotFound", f"Data repository task '{body['TaskId']}' does not exist.")
        if task["Lifecycle"] not in ("PENDING", "EXECUTING"):
            raise FsxError("DataRepositoryTaskEnded", f"Data repository task '{body['TaskId']}' has ended.")
        task["Lifecycle"] = "CANCELING"
        return {"Lifecycle": "CANCELING", "TaskId": body["TaskId"]}

    def CreateBackup(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"Backup": self._backup(self._system(body["FileSystemId"]), body.get("Tags", []))}

    def DescribeBackups(self, body: dict[str, Any]) -> dict[str, Any]:
        found = _described(self.backups, body.get("BackupIds"), ("BackupNotFound", "Backup '{}' does not exist."))
        return {"Backups": _filtered(found, body)}

    def DeleteBackup(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.backups.pop(body["BackupId"], None) is None:
            raise FsxError("BackupNotFound", f"Backup '{body['BackupId']}' does not exist.")
        return {"BackupId": body["BackupId"], "Lifecycle": "DELETED"}

    def TagResource(self, body: dict[str, Any]) -> dict[str, Any]:
        thing = self._tagged(body["ResourceARN"])
        changed = {tag["Key"] for tag in body["Tags"]}
        thing["Tags"] = [tag for tag in thing["Tags"] if tag["Key"] not in changed] + body["Tags"]
        return {}

    def UntagResource(self, body: dict[str, Any]) -> dict[str, Any]:
        thing = self._tagged(body["ResourceARN"])
        thing["Tags"] = [tag for tag in thing["Tags"] if tag["Key"] not in body["TagKeys"]]
        return {}

    def ListTagsForResource(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"Tags": self._tagged(body["ResourceARN"])["Tags"]}

    def _backup(self, system: dict[str, Any], tags: list[dict[str, str]]) -> dict[str, Any]:
        if not system["LustreConfiguration"]["DeploymentType"].startswith("PERSISTENT"):
            raise FsxError("BadRequest", "Backups are not supported on scratch file systems.")
        name = _new("backup")
        backup = {
            "BackupId": name,
            "Lifecycle": "CREATING",
            "Type": "USER_INITIATED",
            "CreationTime": time.time(),
            "ProgressPercent": 100,
            "ResourceARN": _arn(f"backup/{name}"),
            "Tags": tags,
            "ResourceType": "FILE_SYSTEM",
            "FileSystem": dict(system),
        }
        self.backups[name] = backup
        return backup

    def _system(self, name: str) -> dict[str, Any]:
        system: dict[str, Any] | None = self.file_systems.get(name)
        if system is None or system["Lifecycle"] == "DELETING":
            raise FsxError("FileSystemNotFound", f"File system '{name}' does not exist.")
        return system

    def _association(self, name: str) -> dict[str, Any]:
        association: dict[str, Any] | None = self.associations.get(name)
        if association is None:
            message = f"Data repository association '{name}' does not exist."
            raise FsxError("DataRepositoryAssociationNotFound", message)
        return association

    def _tagged(self, arn: str) -> dict[str, Any]:
        for store in (self.file_systems, self.associations, self.tasks, self.backups):
            for thing in store.values():
                if thing["ResourceARN"] == arn:
                    return cast(dict[str, Any], thing)
        raise FsxError("ResourceNotFound", f"The resource {arn} does not exist.")


SERVICE: Final = Fsx()


def tags_of(arn: str) -> dict[str, str]:
    """Returns the tags of an object for policy evaluation; empty if it does not exist."""
    for store in (SERVICE.file_systems, SERVICE.associations, SERVICE.tasks, SERVICE.backups):
        for name, thing in store.items():
            if arn.endswith(f"/{name}"):
                return {tag["Key"]: tag["Value"] for tag in thing["Tags"]}
    return {}


def extend() -> None:
    """Serves FSx in addition to ministack's services, with the same identity policies."""
    service = SERVICE

    async def handle(method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]) -> Any:
        operation = headers.get("x-amz-target", "").rpartition(".")[2]
        act = getattr(service, operation, None) if re.fullmatch(r"[A-Z][A-Za-z]+", operation) else None
        asked = json.loads(body or b"{}")
        if act is None:
            return _answer(400, {"__type": "UnknownOperationException", "message": f"{operation} is not emulated"})
        problems = ParamValidator().validate(asked, model_of("fsx").operation_model(operation).input_shape)
        if problems.has_errors():
            return _answer(400, {"__type": "BadRequest", "message": problems.generate_report()})
        try:
            return _answer(200, act(asked))
        except FsxError as error:
            return _answer(400, {"__type": error.code, "message": error.message})

    app.SERVICE_HANDLERS["fsx"] = handle
    router.SERVICE_PATTERNS["fsx"] = {"target_prefixes": ["AWSSimbaAPIService"], "credential_scope": "fsx"}
    iam_actions.SERVICE_TO_IAM_NAMESPACE["fsx"] = "fsx"


def _lustre(asked: dict[str, Any], deployment: str) -> dict[str, Any]:
    told = {
        "DeploymentType": deployment,
        "MountName": "fsx" if deployment == "SCRATCH_1" else "".join(secrets.choice("abcdefghij") for _ in range(8)),
        "WeeklyMaintenanceStartTime": asked.get("WeeklyMaintenanceStartTime", "1:05:00"),
        "DataCompressionType": asked.get("DataCompressionType", "NONE"),
        "LogConfiguration": asked.get("LogConfiguration", {"Level": "DISABLED"}),
        "CopyTagsToBackups": asked.get("CopyTagsToBackups", False),
    }
    if deployment.startswith("PERSISTENT"):
        told |= {
            "PerUnitStorageThroughput": asked["PerUnitStorageThroughput"],
            "AutomaticBackupRetentionDays": asked.get("AutomaticBackupRetentionDays", 0),
            "DailyAutomaticBackupStartTime": asked.get("DailyAutomaticBackupStartTime", "05:00"),
        }
    kept = ("RootSquashConfiguration", "MetadataConfiguration", "EfaEnabled", "DriveCacheType")
    return told | {field: asked[field] for field in kept if field in asked}


def _described(store: Any, names: list[str] | None, missing: tuple[str, str]) -> list[dict[str, Any]]:
    """Returns the objects with `names`, or all, in their current state; the next call returns the following state."""
    for name in names or []:
        if name not in store:
            raise FsxError(missing[0], missing[1].format(name))
    found = []
    for name in list(names or store.keys()):
        thing = store[name]
        found.append(dict(thing))
        thing["Lifecycle"] = NEXT.get(thing["Lifecycle"], thing["Lifecycle"])
        if thing["Lifecycle"] == "GONE":
            store.pop(name)
    return found


def _filtered(found: list[dict[str, Any]], body: dict[str, Any]) -> list[dict[str, Any]]:
    """Filters objects by file system; other filters are ignored."""
    for condition in body.get("Filters", []):
        if condition.get("Name") == "file-system-id":
            found = [thing for thing in found if _system_of(thing) in condition["Values"]]
    return found


def _system_of(thing: dict[str, Any]) -> str:
    return str(thing.get("FileSystemId") or thing["FileSystem"]["FileSystemId"])


def _new(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(8)}0"


def _arn(resource: str) -> str:
    return f"arn:aws:fsx:{get_region()}:{get_account_id()}:{resource}"


def _answer(status: int, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(body).encode()
