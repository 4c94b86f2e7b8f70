"""Which files are documents, and of which kind."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from ragpg.errors import DocumentError, InputError
from ragpg.inputs import shown, without_middle
from ragpg.types import DocumentFailure, MediaType, PassedOver, StrPath

_SUFFIXES: Final[dict[MediaType, str]] = {
    "markdown": ".md .markdown .mdown .mkd .mdx .qmd .rmd",
    "html": ".html .htm .xhtml",
    "pdf": ".pdf",
    "docx": ".docx",
    "text": (
        ".txt .text .rst .adoc .log .csv .tsv .json .jsonl .ndjson .yaml .yml .toml .ini .cfg "
        ".conf .properties .xml .sql .py .pyi .js .jsx .mjs .cjs .ts .tsx .go .rs .java .kt .kts "
        ".scala .c .h .cc .cpp .cxx .hpp .hh .cs .swift .rb .php .pl .lua .r .jl .sh .bash .zsh "
        ".fish .ps1 .bat .tf .hcl .proto .graphql .gql .css .scss .less .vue .svelte .dart .ex "
        ".exs .erl .hs .clj .ml .nix .gradle .cmake .dockerfile .mk"
    ),
}
MEDIA_TYPES: Final[dict[str, MediaType]] = {
    suffix: media_type for media_type, suffixes in _SUFFIXES.items() for suffix in suffixes.split()
}
# Formats that are known and not read: the suffix says so before the content is looked at.
UNSUPPORTED: Final = frozenset(
    [
        ".doc",
        ".xls",
        ".xlsx",
        ".ppt",
        ".pptx",
        ".odt",
        ".ods",
        ".odp",
        ".rtf",
        ".epub",
        ".pages",
        ".key",
        ".numbers",
        ".png",
        ".jpg",
        ".jpeg",
        ".gif",
        ".webp",
        ".bmp",
        ".tif",
        ".tiff",
        ".heic",
        ".svg",
        ".ico",
        ".mp3",
        ".mp4",
        ".wav",
        ".mov",
        ".avi",
        ".zip",
        ".tar",
        ".gz",
        ".bz2",
        ".xz",
        ".zst",
        ".7z",
        ".rar",
        ".exe",
        ".dll",
        ".so",
        ".dylib",
        ".bin",
        ".o",
        ".a",
        ".class",
        ".jar",
        ".pyc",
        ".whl",
        ".parquet",
        ".sqlite",
        ".db",
        ".onnx",
        ".ipynb",
    ]
)
_NAMES: Final = frozenset(
    {"dockerfile", "makefile", "readme", "license", "changelog", "jenkinsfile"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file to read and the key of its document."""

    path: Path
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
    """The files below some paths, the folders that could not be read, and what was passed over.

    The key of a failed folder ends in a slash; what is below it is not known.
    """

    files: tuple[SourceFile, ...]
    failed: tuple[DocumentFailure, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()

    def hides(self, key: str) -> bool:
        """Whether a file of this key may be there, below a folder that could not be read."""
        return any(key.startswith(failure.key) for failure in self.failed)


def media_type_of(key: str) -> MediaType | None:
    """The media type that the key's suffix, or a name like Dockerfile, stands for; else None."""
    name = PurePosixPath(key).name.lower()
    return MEDIA_TYPES.get(PurePosixPath(name).suffix) or ("text" if name in _NAMES else None)


def find_files(paths: StrPath | Iterable[StrPath]) -> FoundFiles:
    """The files to read, in the order of `paths`, within a folder by name; each file once.

    A folder gives the supported files below it, by their path from it. Hidden files and folders are
    left out in silence; files of other kinds, links that lead out of the folder and links to
    folders are passed over and named. A file that is named itself always counts, by its name:
    reading it says when it is not supported. Raises DocumentError (`unreadable`) for a path that
    does not exist or a given folder that cannot be read, and InputError where two files would have
    one key or something is no path.
    """
    found: dict[Path, SourceFile] = {}
    keys: dict[str, Path] = {}
    failed: list[DocumentFailure] = []
    passed_over: list[PassedOver] = []
    for path in _as_paths(paths):
        if _is_folder(path):
            below = _walk(path)
            failed += below.failed
            passed_over += below.passed_over
            sources = below.files
        else:
            sources = (SourceFile(path=path, key=path.name),)
        for source in sources:
            real = source.path.resolve()
            if real in found:
                continue
            if source.key in keys:
                raise InputError(
                    f"{without_middle(keys[source.key])} and {without_middle(source.path)} would"
                    " both be the document "
                    f"{without_middle(repr(source.key))}; ingest the folder above them."
                )
            found[real] = source
            keys[source.key] = source.path
    return FoundFiles(
        files=tuple(found.values()), failed=tuple(failed), passed_over=tuple(passed_over)
    )


def as_path(path: StrPath) -> Path:
    """The same as a Path. Raises InputError for what is neither text nor a path, or blank."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{shown(path)} is no path; give a str or a pathlib.Path")
    # Path("") is the working directory, which nobody means by a variable that is not set.
    if isinstance(path, str) and not path.strip():
        raise InputError(
            f"{shown(path)} is no path; name a file or a folder, '.' for the current one"
        )
    return Path(path)


def _as_paths(paths: StrPath | Iterable[StrPath]) -> list[Path]:
    # A lone string is one path: as a sequence it would be its letters.
    if isinstance(paths, str | os.PathLike):
        return [as_path(paths)]
    return [as_path(path) for path in paths]


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError as exc:
        raise DocumentError(
            f"{without_middle(path)} does not exist; check the path.", reason="unreadable"
        ) from exc
    except OSError as exc:
        raise _unreadable(path, exc) from exc


def _walk(folder: Path) -> FoundFiles:
    root = folder.resolve()
    waiting = [folder]
    files: list[SourceFile] = []
    failed: list[DocumentFailure] = []
    passed_over: list[PassedOver] = []
    while waiting:
        inside = waiting.pop()
        try:
            # Listing alone: it tells folders from files without the right to enter.
            with os.scandir(inside) as listed:
                entries = [entry for entry in listed if not entry.name.startswith(".")]
        except OSError as exc:
            unreadable = _unreadable(inside, exc)
            if inside == folder:
                raise unreadable from exc
            key = f"{inside.relative_to(folder).as_posix()}/"
            failed.append(DocumentFailure(key=key, reason="unreadable", message=str(unreadable)))
            continue
        for entry in entries:
            path = inside / entry.name
            key = path.relative_to(folder).as_posix()
            is_link = entry.is_symlink()
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif is_link and not _leads_to_file_in(root, path):
                passed_over.append(PassedOver(key=key, reason="link"))
            elif (is_link or entry.is_file(follow_symlinks=False)) and media_type_of(entry.name):
                files.append(SourceFile(path=path, key=key))
            else:
                passed_over.append(PassedOver(key=key, reason="other_kind"))
    return FoundFiles(
        files=tuple(sorted(files, key=lambda file: file.key)),
        failed=tuple(sorted(failed, key=lambda failure: failure.key)),
        passed_over=tuple(sorted(passed_over, key=lambda one: one.key)),
    )


def _leads_to_file_in(root: Path, link: Path) -> bool:
    """Whether a link leads to a file below `root`, and not to nothing, or in a circle."""
    try:
        return link.resolve().is_relative_to(root) and link.is_file()
    except OSError:
        # There may be a file; reading it says why it cannot be read.
        return True
    except RuntimeError:
        # What Path.resolve raises for a circle, up to Python 3.12.
        return False


def _unreadable(path: Path, exc: OSError) -> DocumentError:
    return DocumentError(
        f"{without_middle(path)} cannot be read ({exc.strerror}); check the path and its rights.",
        reason="unreadable",
    )
