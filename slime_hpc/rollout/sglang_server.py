"""The process of an SGLang server: `python -m slime_hpc.rollout.sglang_server FILE`.

FILE is JSON: `token_file` (the run's bearer token, which so stays out of argv and environment), `accelerator`, and `server_args`.
SGLang logs its arguments, the token among them: every log record of every process of the server passes a filter that strikes it out.
SGLang's children are spawned and so run the top level of this module again, which is how the filter and the CPU parts get into them.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from slime_hpc.errors import ConfigError
from slime_hpc.rollout.process import CONFIG_ERROR_STATUS
from slime_hpc.rollout.server_args import check_fields

_FILE_VARIABLE = "SLIME_HPC_ENGINE_FILE"


def strike_out(secret: str) -> None:
    """Replace `secret` by *** in every log record made in this process from now on."""
    make = logging.getLogRecordFactory()

    def record_without_secret(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        message = record.getMessage()
        if secret in message:
            record.msg, record.args = message.replace(secret, "***"), None
        return record

    logging.setLogRecordFactory(record_without_secret)


def _prepare(path: str) -> tuple[dict[str, Any], str]:
    """Ready this process for SGLang; its arguments, and the token."""
    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    token = Path(settings["token_file"]).read_text(encoding="ascii").strip()
    strike_out(token)
    if settings["accelerator"] == "cpu":
        from slime_hpc.rollout import cpu_engine

        cpu_engine.apply()
    return settings["server_args"], token


def main(path: str) -> None:
    """Serve until killed. Ends with status 2 when an argument is wrong."""
    os.environ[_FILE_VARIABLE] = path
    arguments, token = _prepare(path)
    from sglang.launch_server import run_server
    from sglang.srt.server_args import ServerArgs

    try:
        check_fields(arguments, inspect.signature(ServerArgs).parameters)
        server_args = ServerArgs(**arguments, api_key=token)
    except (ConfigError, ValueError, TypeError) as error:
        print(f"{type(error).__name__}: {error}".replace(token, "***"), file=sys.stderr, flush=True)
        sys.exit(CONFIG_ERROR_STATUS)
    run_server(server_args)


if __name__ == "__main__":
    main(sys.argv[1])
elif __name__ == "__mp_main__":
    _prepare(os.environ[_FILE_VARIABLE])
