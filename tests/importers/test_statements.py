"""Scripts are split as in a shell: at the top level, outside of quotes, conditions and substitutions."""

from __future__ import annotations

import pytest

from windlass.importers.statements import statements, words


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a\nb; c && d", ["a", "b", "c", "d"]),
        ("a \\\n  b # comment; c\nd", ["a \\\n  b # comment; c", "d"]),
        ("# only a comment\n\na", ["a"]),
        ("if x; then\n  y\nfi\nz", ["if x; then\n  y\nfi", "z"]),
        ("for i in 1 2; do echo $i; done; z", ["for i in 1 2; do echo $i; done", "z"]),
        ("f() {\n  a; b\n}\nf", ["f() {\n  a; b\n}", "f"]),
        ("( a; b ); c", ["( a; b )", "c"]),
        ("x='a;b' y=\"c;$(d; e)\" z", ["x='a;b' y=\"c;$(d; e)\" z"]),
        ("a=`b; c`; d", ["a=`b; c`", "d"]),
        ("a=(1 2); b", ["a=(1 2)", "b"]),
        ("a | b || c & \nd", ["a | b || c &", "d"]),
        ("a >&2 2>&1; b", ["a >&2 2>&1", "b"]),
        ("echo if; b", ["echo if", "b"]),
        ("", []),
    ],
)
def test_statements_end_as_in_a_shell(script: str, expected: list[str]) -> None:
    found = statements(script)
    assert found is not None
    assert [one.text for one in found] == expected
    assert all(script[one.start : one.end] == one.text for one in found)


@pytest.mark.parametrize("script", ["cat <<EOF\na\nEOF", "if x; then y", "a)", 'echo "a', "echo $(a", "a=`b", "fi"])
def test_ambiguous_scripts_are_not_split(script: str) -> None:
    assert statements(script) is None


def test_words_keep_their_quotes_and_operators_are_separate() -> None:
    text = "A=1 run --x \"$B c\" 'd e' >&2 | tee out"
    assert [word for _, word in words(text)] == [
        "A=1",
        "run",
        "--x",
        '"$B c"',
        "'d e'",
        ">&2",
        "|",
        "tee",
        "out",
    ]
    assert all(text.startswith(word, at) for at, word in words(text))
