"""The list of services names what is up, what is unused, and which targets did not answer."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from windlass.cli.deploy import answer_lines, end_words, price_words, ready_lines
from windlass.cli.services import closed_lines, list_lines
from windlass.engines.deployments import HERE, Deployment, DeploymentPhase
from windlass.services.known import KnownDeployment, known_deployments, remember
from windlass.views.services import (
    ClosedService,
    Invocation,
    ServiceList,
    ServiceView,
    UnansweredTarget,
    deployment_view,
)

NOW = 1_790_000_000.0
DIGITS = deployment_view(
    Deployment(
        "digits",
        "aws",
        DeploymentPhase.READY,
        owner="ann",
        run_id="digits-7f3k2",
        created_at=NOW - 3600,
        ends_at=NOW + 7200,
        ends_by="schedule",
        replicas=2,
        ready_replicas=1,
        price_per_hour=0.115,
        currency="EUR",
        last_request_at=NOW - 60,
    ),
    NOW,
)


def plain(text: str, *_style: object, **_more: object) -> str:
    return text


def shown(*services: ServiceView, unanswered: tuple[UnansweredTarget, ...] = ()) -> list[str]:
    return list(list_lines(ServiceList(services, unanswered), NOW, plain))


def test_service_is_listed_with_its_price_its_end_and_its_last_request() -> None:
    titles, row = shown(DIGITS)
    assert titles.split()[:6] == ["NAME", "KIND", "TARGET", "STATE", "PRICE/H", "ENDS"]
    assert "digits  deployment  aws     ready  0.115 EUR  in 2h00m" in row
    assert "1m00s ago" in row
    assert "1/2" in row


def test_what_is_not_known_is_called_unknown() -> None:
    unknown = deployment_view(Deployment("digits", "aws", DeploymentPhase.UNKNOWN, cause="no route"), NOW)
    [_, row, cause] = shown(unknown)
    assert row.split()[:7] == ["digits", "deployment", "aws", "unknown", "unknown", "unknown", "unknown"]
    assert cause == "digits: no route"


def test_service_that_never_ends_is_marked() -> None:
    assert "never" in shown(replace(DIGITS, ends_at=None))[1]


def test_deployment_without_a_request_for_a_day_is_named_with_the_command_that_ends_it() -> None:
    unused = deployment_view(Deployment("digits", "aws", DeploymentPhase.READY, last_request_at=NOW - 25 * 3600), NOW)
    assert unused.is_unused
    assert shown(unused)[-1] == "digits: no request for 1d01h: windlass close digits"
    assert not deployment_view(Deployment("digits", "aws", DeploymentPhase.READY), NOW).is_unused


def test_target_that_does_not_answer_is_not_an_empty_one() -> None:
    lines = shown(unanswered=(UnansweredTarget("lab", "no route to host"),))
    assert lines == ["lab did not answer, services may be up there: no route to host"]
    assert shown() == ["nothing is up"]


def test_text_of_a_target_cannot_write_to_the_terminal() -> None:
    lines = shown(replace(DIGITS, cause="\x1b[2Jgone"), unanswered=(UnansweredTarget("lab", "\x1b[1m"),))
    assert not any("\x1b" in line for line in lines)


def test_public_address_of_an_exposed_deployment_is_shown() -> None:
    public = replace(DIGITS, address="digits-1.elb.amazonaws.com")
    assert shown(public)[-1] == "digits: public at https://digits-1.elb.amazonaws.com"
    lines = list(ready_lines(public, NOW, plain, is_exposed=True))
    assert "public      https://digits-1.elb.amazonaws.com" in lines
    lines = list(ready_lines(DIGITS, NOW, plain, is_exposed=True))
    assert "public      its load balancer has no address yet: windlass services --on aws" in lines


def test_closed_service_names_what_was_removed() -> None:
    assert list(closed_lines(ClosedService("digits", "aws", ("endpoint digits", "model digits")))) == [
        "digits on aws has ended: removed endpoint digits, model digits"
    ]


def test_ready_deployment_names_the_commands_that_use_and_end_it() -> None:
    text = "\n".join(ready_lines(DIGITS, NOW, plain, is_exposed=False))
    assert "digits is ready on aws" in text
    assert "windlass invoke digits FILE" in text
    assert "windlass undeploy digits" in text
    assert "0.115 EUR an hour" in text


def test_price_that_is_not_known_is_not_zero() -> None:
    assert price_words(None, "USD") == "unknown"
    assert price_words(0.2, "EUR") == "0.2 EUR an hour"
    assert end_words(NOW + 60, NOW).endswith("in 1m00s")


def test_answer_is_printed_as_json_with_the_names_of_the_classes_below() -> None:
    found = Invocation("digits", 200, "application/json", [[0.1, 0.9]], ("one",))
    assert list(answer_lines(found)) == ["[[0.1, 0.9]]", "one"]
    assert list(answer_lines(replace(found, body="\x1b[2Jno", labels=()))) != ["\x1b[2Jno"]


def test_ps_counts_deployments_whose_end_has_not_passed_and_none_twice(home: Path, windlass: Call) -> None:
    now = time.time()
    remember(home, KnownDeployment("a", "lab", now, now + 600, place="https://lab, namespace team"))
    remember(home, KnownDeployment("b", "lab", now - 60, now - 10, place="https://lab, namespace team"))
    remember(home, KnownDeployment("c", "mine", now, None, place=HERE))  # its run is counted
    assert "1 service is up: windlass services" in windlass("ps").err


def test_error_of_one_name_leaves_no_other_service_open(home: Path, windlass: Call) -> None:
    for name in ("a", "c"):
        remember(home, KnownDeployment(name, "local", 1.0, None, place="elsewhere"))
    done = windlass("close", "a", "b", "c", "--forget")
    assert (done.code, known_names(home)) == (2, [])
    assert "a on local is forgotten" in done.out
    assert "this machine remembers b on these targets: none" in done.err
    remember(home, KnownDeployment("d", "local", 1.0, None, place="elsewhere"))
    done = windlass("close", "a", "d")
    assert "no service 'a' is up" in done.err
    assert "d was deployed to elsewhere" in done.err


def known_names(home: Path) -> list[str]:
    return [one.name for one in known_deployments(home)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("invoke", "digits", "a.json", "--timeout", "0s"), "--timeout 0s: must be longer than 0"),
        (("tensorboard", ".", "--idle", "0s"), "--idle 0s: must be longer than 0"),
        (("notebook", ".", "--for", "0s"), "--for 0s: must be longer than 0"),
        (("deploy", "digits-7f3k2", "digits-9xw4m"), "deploy takes one model; digits-9xw4m is no option of the server"),
    ],
)
def test_words_that_would_be_ignored_or_misread_are_refused(
    home: Path, windlass: Call, words: tuple[str, ...], message: str
) -> None:
    Path("a.json").write_text("{}")
    done = windlass(*words)
    assert done.code == 2
    assert message in done.err
