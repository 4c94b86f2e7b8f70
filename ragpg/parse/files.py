"""Which files are documents, and of which kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from ragpg.errors import DocumentError, InputError
from ragpg.types import MediaType

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


def media_type_of(key: str) -> MediaType | None:
    """The media type that the key's suffix, or a name like Dockerfile, stands for; else None."""
    name = PurePosixPath(key).name.lower()
    return MEDIA_TYPES.get(PurePosixPath(name).suffix) or ("text" if name in _NAMES else None)


def find_files(paths: Sequence[Path]) -> list[SourceFile]:
    """The files to read, in the order of `paths`, within a folder by name; each file once.

    A folder gives the supported files below it, by their path from it; hidden files and folders
    and links to folders are passed over. A file that is named itself always counts, by its name:
    reading it says when it is not supported. Raises DocumentError (`unreadable`) for a path that
    does not exist, and InputError where two files would have one key.
    """
    found: dict[Path, SourceFile] = {}
    keys: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise DocumentError(f"{path} does not exist; check the path.", reason="unreadable")
        sources = _walk(path) if path.is_dir() else [SourceFile(path=path, key=path.name)]
        for source in sources:
            real = source.path.resolve()
            if real in found:
                continue
            if source.key in keys:
                raise InputError(
                    f"{keys[source.key]} and {source.path} would both be the document "
                    f"{source.key!r}; ingest the folder above them."
                )
            found[real] = source
            keys[source.key] = source.path
    return list(found.values())


def _walk(folder: Path) -> Iterator[SourceFile]:
    waiting = [folder]
    files: list[tuple[str, Path]] = []
    while waiting:
        for entry in waiting.pop().iterdir():
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if not entry.is_symlink():
                    waiting.append(entry)
            elif entry.is_file() and media_type_of(entry.name) is not None:
                files.append((entry.relative_to(folder).as_posix(), entry))
    for key, path in sorted(files):
        yield SourceFile(path=path, key=key)
