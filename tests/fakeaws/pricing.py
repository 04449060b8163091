"""An emulated AWS price list and spot price history, over HTTP for boto3. Not AWS: tests set the products.

Requests and responses are validated with botocore's service models. Products have the format of the price list: units
such as `GiBps-mo`, prefixes of usage types such as `USW2-`, tiers, and prices as text.
"""

from __future__ import annotations

import functools
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

import boto3
from botocore.config import Config
from botocore.session import Session
from botocore.validate import ParamValidator

from windlass.pricing.fetch import Clients

TARGET: Final = "AWSPriceListService."
JSON: Final = "application/x-amz-json-1.1"


def product(
    service: str, family: str, usd: str | list[tuple[str, str]], unit: str, **attributes: str
) -> dict[str, Any]:
    """Returns an element of the price list; tiers are pairs of a start amount and a price."""
    tiers = [("0", usd)] if isinstance(usd, str) else usd
    sku = f"SKU{abs(hash((service, family, unit, tuple(sorted(attributes.items())), str(usd)))):016X}"
    dimensions = {
        f"{sku}.T.{at}": {
            "unit": unit,
            "beginRange": begin,
            "endRange": "Inf",
            "description": "",
            "appliesTo": [],
            "rateCode": f"{sku}.T.{at}",
            "pricePerUnit": {"USD": price},
        }
        for at, (begin, price) in enumerate(tiers)
    }
    return {
        "product": {"productFamily": family, "attributes": {"servicecode": service, **attributes}, "sku": sku},
        "serviceCode": service,
        "terms": {"OnDemand": {f"{sku}.T": {"priceDimensions": dimensions, "sku": sku, "effectiveDate": "2026-11-01"}}},
        "version": "20261101000000",
        "publicationDate": "2026-11-01T00:00:00Z",
    }


class PriceListServer:
    """Serves GetProducts and DescribeSpotPriceHistory, page by page."""

    def __init__(self) -> None:
        self.products: list[dict[str, Any]] = []
        self.spot: list[tuple[str, str, str, datetime]] = []
        """Type, zone, price and time of each entry."""
        self.page = 100
        """Products, or entries, in one answer at most."""
        self.refused: dict[str, tuple[str, str]] = {}
        """By operation, the code and message of an error."""
        self.calls: Counter[str] = Counter()
        self.url = ""

    def answer(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the response of a price list call."""
        shape = _operation(operation)
        wrong = ParamValidator().validate(dict(body), shape.input_shape).generate_report()
        assert not wrong, wrong
        found = [one for one in self.products if one["serviceCode"] == body["ServiceCode"] and _fits(one, body)]
        first = int(body.get("NextToken", "0"))
        last = first + min(self.page, body.get("MaxResults", 100))
        told: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(one) for one in found[first:last]]}
        if last < len(found):
            told["NextToken"] = str(last)
        wrong = ParamValidator().validate(told, shape.output_shape).generate_report()
        assert not wrong, wrong
        return told

    def history(self, form: Mapping[str, str]) -> str:
        """Returns the response of DescribeSpotPriceHistory in EC2's XML."""
        assert form["Filter.1.Name"] == "instance-type", form
        assert form["ProductDescription.1"] == "Linux/UNIX", form
        types = {value for key, value in form.items() if key.startswith("Filter.1.Value.")}
        assert len(types) <= 200, "EC2 takes 200 values of a filter at most"
        since = datetime.fromisoformat(form["StartTime"].replace("Z", "+00:00"))
        found = [one for one in self.spot if one[0] in types and one[3] >= since]
        first = int(form.get("NextToken") or 0)
        items = "".join(
            f"<item><instanceType>{escape(kind)}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{usd}</spotPrice><timestamp>{at:%Y-%m-%dT%H:%M:%S.000Z}</timestamp>"
            f"<availabilityZone>{escape(zone)}</availabilityZone></item>"
            for kind, zone, usd, at in found[first : first + self.page]
        )
        token = str(first + self.page) if first + self.page < len(found) else ""
        return (
            '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
            f"<requestId>1</requestId><spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken>{token}</nextToken>"
            "</DescribeSpotPriceHistoryResponse>"
        )

    def clients(self, region: str) -> Clients:
        """Returns boto3 clients for this server."""
        more: dict[str, Any] = {
            "endpoint_url": self.url,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "config": Config(retries={"total_max_attempts": 1}),
        }
        return Clients(
            boto3.client("pricing", region_name="us-east-1", **more), boto3.client("ec2", region_name=region, **more)
        )


@functools.cache
def _operation(name: str) -> Any:
    return Session().get_service_model("pricing").operation_model(name)


def _fits(one: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    attributes = {**one["product"]["attributes"], "productFamily": one["product"]["productFamily"]}
    return all(
        attributes.get(wanted["Field"], "").lower() == wanted["Value"].lower() for wanted in body.get("Filters", [])
    )


@contextmanager
def emulated_prices() -> Iterator[PriceListServer]:
    """Yields a local server without products."""
    plane = PriceListServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"plane": plane}))
    plane.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield plane
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    plane: PriceListServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Suppresses request logs; tests read `calls` instead."""

    def do_POST(self) -> None:
        """Handles one call: JSON for the price list, a form for EC2."""
        data = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        target = self.headers.get("X-Amz-Target", "")
        form = {key: value[0] for key, value in parse_qs(data).items()} if not target else {}
        operation = target.removeprefix(TARGET) or form["Action"]
        self.plane.calls[operation] += 1
        if operation in self.plane.refused:
            self._refuse(operation, is_json=bool(target))
        elif target:
            self._send(200, JSON, json.dumps(self.plane.answer(operation, json.loads(data))))
        else:
            self._send(200, "text/xml", self.plane.history(form))

    def _refuse(self, operation: str, *, is_json: bool) -> None:
        code, message = self.plane.refused[operation]
        xml = f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></Response>"
        text = json.dumps({"__type": code, "message": message}) if is_json else xml
        self._send(400, JSON if is_json else "text/xml", text)

    def _send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def fill(plane: PriceListServer, region: str, prefix: str, now: float) -> None:
    """Adds the products that the tests fetch: some instance types with related products, and services with prices."""
    here = {"regionCode": region}
    on_demand = {
        **here,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "licenseModel": "No License required",
        "marketoption": "OnDemand",
    }
    for name, usd in (("g5.12xlarge", "7.0900000000"), ("p5.48xlarge", "60.5000000000"), ("m7i.large", "0.1197")):
        of = {"instanceType": name, "usagetype": f"{prefix}BoxUsage:{name}"}
        plane.products += [
            product("AmazonEC2", "Compute Instance", usd, "Hrs", **on_demand, **of),
            product("AmazonEC2", "Compute Instance", "99", "Hrs", **{**on_demand, "operatingSystem": "Windows"}, **of),
            product(
                "AmazonEC2", "Compute Instance", "0", "Hrs", **{**on_demand, "capacitystatus": "AllocatedHost"}, **of
            ),
        ]
    # One type is listed twice with different prices, and one is listed without a price.
    for usd in ("1.5", "1.6"):
        of = {"instanceType": "m5.large", "usagetype": f"{prefix}BoxUsage:m5.large"}
        plane.products.append(product("AmazonEC2", "Compute Instance", usd, "Hrs", **on_demand, **of))
    of = {"instanceType": "p6-b200.48xlarge", "usagetype": f"{prefix}BoxUsage:p6-b200.48xlarge"}
    plane.products.append(product("AmazonEC2", "Compute Instance", "0.0000000000", "Hrs", **on_demand, **of))
    for service, family, usage, usd, unit, more in _SERVICES:
        before = f"{region}-" if service == "awskms" else prefix
        plane.products.append(product(service, family, usd, unit, **here, usagetype=before + usage, **more))
    days = [(1, "2.1"), (2, "1.9"), (3, "2.6"), (60, "0.1")]
    plane.spot += [
        ("g5.12xlarge", f"{region}{zone}", usd, datetime.fromtimestamp(now, UTC) - timedelta(days=ago))
        for zone in "ab"
        for ago, usd in days
    ]


_SERVICES: Final[tuple[tuple[str, str, str, Any, str, dict[str, str]], ...]] = (
    ("AmazonEC2", "Storage", "EBS:VolumeUsage.gp3", "0.0952", "GB-Mo", {}),
    ("AmazonEC2", "Storage", "EBS:VolumeUsage.gp2", "0.119", "GB-Mo", {}),
    ("AmazonEC2", "System Operation", "EBS:VolumeP-IOPS.gp3", "0.006", "IOPS-Mo", {}),
    ("AmazonEC2", "Provisioned Throughput", "EBS:VolumeP-Throughput.gp3", "49.152", "GiBps-mo", {}),
    ("AmazonEC2", "Storage Snapshot", "EBS:SnapshotUsage", "0.054", "GB-Mo", {}),
    ("AmazonEC2", "NAT Gateway", "NatGateway-Hours", "0.052", "Hrs", {}),
    ("AmazonEC2", "NAT Gateway", "NatGateway-Bytes", "0.052", "GB", {}),
    ("AmazonVPC", "", "PublicIPv4:InUseAddress", "0.005", "Hrs", {}),
    ("AmazonVPC", "VpcEndpoint", "VpcEndpoint-Hours", "0.012", "Hrs", {}),
    ("AWSELB", "Load Balancer-Application", "LoadBalancerUsage", "0.027", "Hrs", {}),
    ("AWSELB", "Load Balancer-Network", "LoadBalancerUsage", "0.028", "Hrs", {}),
    ("AWSELB", "Load Balancer-Application", "TS-LoadBalancerUsage", "0.005", "Hrs", {}),
    ("AmazonEFS", "Storage", "TimedStorage-ByteHrs", "0.36", "GB-Mo", {}),
    ("AmazonEFS", "Storage", "IATimedStorage-ByteHrs", "0.027", "GB-Mo", {}),
    ("AmazonEFS", "Provisioned Throughput", "ETDataAccess-Bytes", "0.04", "GB", {"accessType": "Read"}),
    ("AmazonEFS", "Provisioned Throughput", "ETDataAccess-Bytes", "0.07", "GB", {"accessType": "Write"}),
    ("AmazonFSx", "Storage", "Storage.SSD", "0.168", "GB-Mo",
     {"fileSystemType": "Lustre", "storageType": "SSD", "throughputCapacity": "N/A"}),
    ("AmazonFSx", "Storage", "Storage.250", "0.252", "GB-Mo",
     {"fileSystemType": "Lustre", "storageType": "SSD", "throughputCapacity": "250"}),
    ("AmazonFSx", "Storage", "Storage.HDD", "0.025", "GB-Mo",
     {"fileSystemType": "Lustre", "storageType": "HDD", "throughputCapacity": "12"}),
    ("AmazonEKS", "Compute", "AmazonEKS-Hours:perCluster", "0.10", "Hours", {}),
    ("AmazonS3", "Storage", "TimedStorage-ByteHrs",
     [("51200", "0.0235"), ("0", "0.0245"), ("512000", "0.0225")], "GB-Mo", {}),
    ("AmazonS3", "API Request", "Requests-Tier1", "0.0000054", "Requests", {}),
    ("AmazonECR", "EC2 Container Registry", "TimedStorage-ByteHrs", "0.1", "GB-Mo", {}),
    ("AmazonCloudWatch", "Data Payload", "DataProcessing-Bytes", [("0", "0"), ("5", "0.63")], "GB", {}),
    ("awskms", "Encryption Key", "KMS-Keys", "1.0", "Keys", {}),
)  # fmt: skip
