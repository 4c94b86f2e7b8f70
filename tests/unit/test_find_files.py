"""Which files below a folder are read, which are passed over, and which cannot be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragpg.errors import DocumentError, InputError
from ragpg.ingestion.corpus_sync import folder_root
from ragpg.parse import find_files, parse_file
from ragpg.types import PassedOver
from tests.without_rights import without_rights


def keys(found) -> list[str]:
    return [file.key for file in found.files]


def test_a_link_that_leads_out_of_the_folder_is_passed_over_and_named(tmp_path):
    (tmp_path / "secret.txt").write_text("root:x:0:0")
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "sub" / "real.md").write_text("words")
    (docs / "inside.md").symlink_to(docs / "sub" / "real.md")
    (docs / "outside.txt").symlink_to(tmp_path / "secret.txt")
    (docs / "climbs.txt").symlink_to("../secret.txt")
    (docs / "chain.txt").symlink_to("outside.txt")
    (docs / "nowhere.md").symlink_to("gone.md")
    (docs / "circle.md").symlink_to("circle.md")
    (docs / "folder").symlink_to(docs / "sub")
    found = find_files([docs])
    assert keys(found) == ["inside.md"]
    assert found.passed_over == tuple(
        PassedOver(key=key, reason="link")
        for key in ("chain.txt", "circle.md", "climbs.txt", "folder", "nowhere.md", "outside.txt")
    )


def test_a_folder_that_is_named_by_a_link_is_read_as_the_folder_itself(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.md").write_text("words")
    (tmp_path / "real" / "b.md").symlink_to("a.md")
    (tmp_path / "link").symlink_to("real")
    found = find_files(tmp_path / "link")
    assert (keys(found), found.passed_over) == (["a.md"], ())


def test_a_file_outside_that_is_named_by_its_link_counts(tmp_path):
    (tmp_path / "real.md").write_text("words")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "link.md").symlink_to(tmp_path / "real.md")
    assert keys(find_files([tmp_path / "docs" / "link.md"])) == ["link.md"]


def test_files_of_other_kinds_are_named_and_hidden_ones_are_not(tmp_path):
    (tmp_path / "a.md").write_text("words")
    (tmp_path / "blob.bin").write_bytes(b"\0\1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "table.xlsx").write_bytes(b"PK")
    (tmp_path / ".env").write_text("KEY=word")
    found = find_files([tmp_path])
    assert keys(found) == ["a.md"]
    assert found.passed_over == (
        PassedOver(key="blob.bin", reason="other_kind"),
        PassedOver(key="sub/table.xlsx", reason="other_kind"),
    )


def test_a_subfolder_that_cannot_be_read_is_a_failure_and_the_others_are_found(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "a.md").write_text("words")
    shut = tmp_path / "shut" / "inner"
    shut.mkdir(parents=True)
    with without_rights(shut):
        found = find_files([tmp_path])
        with pytest.raises(DocumentError, match="inner cannot be read") as caught:
            find_files([shut])
    assert caught.value.reason == "unreadable"
    assert keys(found) == ["open/a.md"]
    (failure,) = found.failed
    assert (failure.key, failure.reason) == ("shut/inner/", "unreadable")
    assert failure.message == (
        f"{shut} cannot be read (Permission denied); check the path and its rights."
    )
    assert found.hides("shut/inner/b.md")
    assert not found.hides("shut/b.md")


def test_a_file_in_a_folder_that_may_be_listed_but_not_entered_fails_by_its_name(tmp_path):
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "a.md").write_text("words")
    with without_rights(tmp_path / "listed", mode=0o444):
        found = find_files([tmp_path])
        assert keys(found) == ["listed/a.md"]
        with pytest.raises(DocumentError, match=r"listed/a\.md cannot be read"):
            parse_file(found.files[0].path, key=found.files[0].key)


def test_a_lone_path_is_one_path_whether_it_is_text_or_a_path(tmp_path):
    (tmp_path / "a.md").write_text("words")
    for paths in (str(tmp_path), tmp_path, [str(tmp_path)], (tmp_path,), iter([tmp_path])):
        assert keys(find_files(paths)) == ["a.md"]


@pytest.mark.parametrize("paths", ["", " \n", [""], ["a.md", "  "]])
def test_a_blank_path_is_not_taken_for_the_working_directory(paths):
    with pytest.raises(InputError, match=r"is no path; name a file or a folder, '\.' for the curr"):
        find_files(paths)
    with pytest.raises(InputError, match=r"'' is no path"):
        folder_root("")
    assert folder_root(".") == str(Path.cwd())


@pytest.mark.parametrize("paths", [[3], [None], [b"docs"]])
def test_what_is_no_path_is_refused_by_name(paths):
    with pytest.raises(InputError, match=r"is no path; give a str or a pathlib\.Path"):
        find_files(paths)
