"""What a document can do to the terminal on which somebody reads it, and to a password: nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ragpg import cli, terminal


def test_control_characters_of_a_document_are_written_out(capsys):
    terminal.print_table(["key"], [["a\x1b]0;owned\x07\x9b2Jz"]])
    terminal.print_notices(["b\x1b[2J"])
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "a\\x1b]0;owned\\x07\\x9b2Jz" in said
    assert "b\\x1b[2J" in said


def test_psql_gets_the_password_in_its_environment_and_not_as_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told = tmp_path / "told"
    program = tmp_path / "psql"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$PGPASSWORD" "$@" > {told}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    cli._psql("postgresql://app:secret%2Fword@127.0.0.1:1/ragpg", 7)
    password, *arguments = told.read_text().splitlines()
    assert password == "secret/word"
    assert "secret" not in json.dumps(arguments)
    assert "host=127.0.0.1" in arguments[0]
