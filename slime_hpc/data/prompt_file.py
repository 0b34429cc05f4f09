"""Prompt files: JSON lines and Parquet, read whole and checked line by line. Needs neither numpy nor a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slime_hpc.data.prompt import Prompt
from slime_hpc.errors import DataError


def read_prompts(path: Path, *, prompt_key: str, answer_key: str, where: str) -> list[Prompt]:
    """All prompts of a file. Raises DataError with file and line; `where` is the key that names the file."""
    rows = _parquet_rows(path, where) if path.suffix == ".parquet" else _json_rows(path, where)
    prompts = [_prompt(row, line, path, prompt_key=prompt_key, answer_key=answer_key) for line, row in rows]
    if not prompts:
        raise DataError(f"{path} holds no prompt.", where=where, fix="give a file with at least one line")
    return prompts


def _json_rows(path: Path, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"Cannot read the prompt file {path}: {error.strerror}.", where=where, fix="correct the path or its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}).", where=where, fix="write it as UTF-8 JSON lines") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"Line {number} of {path} is not JSON: {error.msg}.", where=f"{path}:{number}", fix="one JSON object a line"
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"Line {number} of {path} is not a JSON object.", where=f"{path}:{number}", fix='e.g. {"prompt": "...", "answer": "..."}'
            )
        yield number, row


def _parquet_rows(path: Path, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError as error:
        raise DataError("Parquet prompts need the package pyarrow.", where=where, fix="pip install pyarrow, or use JSON lines") from error
    if not path.is_file():
        raise DataError(f"Cannot read the prompt file {path}: no such file.", where=where, fix="correct the path")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a Parquet file: {error}.", where=where, fix="give a Parquet or JSON lines file") from error
    yield from enumerate(table.to_pylist(), start=1)


def _prompt(row: dict[str, Any], line: int, path: Path, *, prompt_key: str, answer_key: str) -> Prompt:
    for key, setting in ((prompt_key, "data.prompt_key"), (answer_key, "data.answer_key")):
        if key not in row:
            raise DataError(
                f"Line {line} of {path} has no field {key!r}; it has {', '.join(map(repr, row)) or 'none'}.",
                where=f"{path}:{line}",
                fix=f"add the field, or set {setting}",
            )
    content = row[prompt_key]
    if isinstance(content, list):
        if not content or not all(isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m for m in content):
            raise DataError(
                f"Line {line} of {path}: {prompt_key!r} is not a list of chat messages.",
                where=f"{path}:{line}",
                fix='[{"role": "user", "content": "..."}]',
            )
    elif not isinstance(content, str) or not content:
        raise DataError(
            f"Line {line} of {path}: {prompt_key!r} is empty or not text.", where=f"{path}:{line}", fix="give a string or chat messages"
        )
    if row[answer_key] is None:
        raise DataError(
            f"Line {line} of {path}: {answer_key!r} is null.", where=f"{path}:{line}", fix="give a reference answer, or remove the line"
        )
    return Prompt(content=content, answer=str(row[answer_key]), metadata=row)
