"""Missing permissions are derived from recorded responses of IAM's policy simulation."""

from __future__ import annotations

import json
from typing import Any

from windlass.clusters.preflight.rights import Refusal, context_of, judged, least, requests

POLICY: list[dict[str, Any]] = [
    {"Effect": "Allow", "Action": ["ec2:CreateVpc", "ec2:Describe*"], "Resource": "*"},
    {"Effect": "Allow", "Action": "s3:CreateBucket", "Resource": ["arn:aws:s3:::a", "arn:aws:s3:::b"]},
    {
        "Effect": "Allow",
        "Action": ["iam:PassRole"],
        "Resource": "arn:aws:iam::1:role/vision-*",
        "Condition": {
            "StringEquals": {"iam:PassedToService": ["eks.amazonaws.com", "ec2.amazonaws.com"]},
            "NumericLessThan": {"aws:MultiFactorAuthAge": "60"},
        },
    },
]


def test_actions_are_simulated_with_their_resource_and_condition() -> None:
    asked = requests(POLICY)
    assert [(one.actions, one.resources) for one in asked] == [
        (("ec2:CreateVpc",), ("*",)),
        (("s3:CreateBucket",), ("arn:aws:s3:::a", "arn:aws:s3:::b")),
        (("iam:PassRole",), ("arn:aws:iam::1:role/vision-*",)),
    ]
    assert context_of(json.loads(asked[-1].condition)) == {"iam:PassedToService": "eks.amazonaws.com"}


def test_many_actions_are_simulated_in_batches() -> None:
    many = {"Action": [f"ec2:A{number}" for number in range(120)], "Resource": "*"}
    assert [len(one.actions) for one in requests([many])] == [50, 50, 20]


def test_conditions_are_satisfied_by_context_values() -> None:
    condition = {"StringLike": {"aws:RequestTag/windlass.dev/cluster": "vi*"}, "Null": {"aws:TagKeys": "false"}}
    assert context_of(condition) == {"aws:RequestTag/windlass.dev/cluster": "vidoctor"}


def test_the_least_policy_names_the_actions_once_for_each_set_of_resources() -> None:
    refused = [Refusal("s3:B", "arn:x"), Refusal("s3:A", "arn:x"), Refusal("s3:A", "arn:x"), Refusal("ec2:C", "*")]
    assert least(refused) == [
        {"Effect": "Allow", "Action": ["ec2:C"], "Resource": "*"},
        {"Effect": "Allow", "Action": ["s3:A", "s3:B"], "Resource": "arn:x"},
    ]


def test_the_least_policy_keeps_the_conditions() -> None:
    condition = '{"StringEquals": {"aws:RequestedRegion": "us-east-1"}}'
    assert least([Refusal("ec2:C", "*", condition), Refusal("ec2:C", "*")]) == [
        {"Effect": "Allow", "Action": ["ec2:C"], "Resource": "*", "Condition": json.loads(condition)},
        {"Effect": "Allow", "Action": ["ec2:C"], "Resource": "*"},
    ]


def test_missing_permissions_are_printed_as_statements() -> None:
    found = judged([Refusal("ec2:CreateVpc", "*")], 3, "arn:aws:iam::1:role/r")
    assert (found.level, found.found) == ("fail", "1 of 3 actions are refused to arn:aws:iam::1:role/r: ec2:CreateVpc")
    policy = json.loads(found.fix.removeprefix("add to its policy: "))
    assert policy == [{"Effect": "Allow", "Action": ["ec2:CreateVpc"], "Resource": "*"}]


def test_denials_by_boundary_or_organization_are_not_missing_statements() -> None:
    found = judged([Refusal("ec2:CreateVpc", "*", why="the permissions boundary refuses it")], 3, "arn")
    assert found.fix == "no policy of its own can allow ec2:CreateVpc: the permissions boundary refuses it"


def test_many_missing_actions_suggest_the_whole_policy() -> None:
    found = judged([Refusal(f"ec2:Action{number}", "*") for number in range(100)], 120, "arn")
    assert found.fix == "attach the policies that windlass cluster policy prints"
    assert found.found.endswith("ec2:Action7 and 92 more")
