import os
import signal
import subprocess
import sys
import textwrap
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest

from slime_hpc.errors import ConfigError, EngineError
from slime_hpc.rollout.process import CONFIG_ERROR_STATUS, ServerProcess, python_environment

NOWHERE = "http://127.0.0.1:1/health"


def python(source):
    return [sys.executable, "-c", textwrap.dedent(source)]


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_an_early_death_is_told_with_its_last_words(capsys):
    source = "print('loading'); raise RuntimeError('no weights in /nowhere')"
    with ServerProcess("engines-0", python(source), os.environ) as server, pytest.raises(EngineError) as caught:
        server.wait_healthy(NOWHERE, timeout_s=60)
    assert "engines-0 ended with status 1" in caught.value.what
    assert "RuntimeError: no weights in /nowhere" in caught.value.what
    assert "loading" in capsys.readouterr().out


def test_the_reason_is_found_before_noise():
    source = """
        import sys
        print("ValueError: the reason", flush=True)
        for i in range(100): print("noise", i, flush=True)
        sys.exit(3)
    """
    with ServerProcess("engines-0", python(source), os.environ) as server, pytest.raises(EngineError, match="ValueError: the reason"):
        server.wait_healthy(NOWHERE, timeout_s=60)


def test_a_wrong_configuration_is_a_user_error():
    source = f"import sys; print('ConfigError: no argument xyz'); sys.exit({CONFIG_ERROR_STATUS})"
    with ServerProcess("engines-0", python(source), os.environ) as server, pytest.raises(ConfigError, match="no argument xyz"):
        server.wait_healthy(NOWHERE, timeout_s=60)


def test_a_signal_is_named():
    source = "import os; os.kill(os.getpid(), 11)"
    with ServerProcess("engines-0", python(source), os.environ) as server, pytest.raises(EngineError, match="died of SIGSEGV"):
        server.watch()


def test_waiting_ends():
    late = pytest.raises(EngineError, match="not ready within 1 s")
    with ServerProcess("engines-0", python("import time; time.sleep(600)"), os.environ) as server, late:
        server.wait_healthy(NOWHERE, timeout_s=1)
    assert gone(server.pid)


def test_healthy_is_a_200():
    source = """
        import http.server
        class Handler(http.server.BaseHTTPRequestHandler):
            count = 0
            def do_GET(self):
                Handler.count += 1
                self.send_response(200 if Handler.count > 2 else 503); self.end_headers()
        server = http.server.HTTPServer(("127.0.0.1", int(__import__("sys").argv[1])), Handler)
        server.serve_forever()
    """
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as probe:
        port = probe.server_port
    with ServerProcess("engines-0", [*python(source), str(port)], os.environ) as server:
        server.wait_healthy(f"http://127.0.0.1:{port}/", timeout_s=60)


def test_the_whole_tree_is_killed(tmp_path):
    source = f"""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid)); time.sleep(600)
    """
    with ServerProcess("engines-0", python(source), os.environ) as server:
        assert wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    assert gone(server.pid)
    assert wait_until(lambda: gone(int((tmp_path / "pid").read_text())))


def test_nothing_is_left_when_the_task_is_killed(tmp_path):
    source = f"""
        import os, sys
        from slime_hpc.rollout.process import ServerProcess
        with ServerProcess("engines-0", [sys.executable, "-c", "import time; time.sleep(600)"], os.environ) as server:
            open({str(tmp_path / "pid")!r}, "w").write(str(server.pid))
            server.watch()
    """
    task = subprocess.Popen(python(source), env=python_environment())
    assert wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    child = int((tmp_path / "pid").read_text())
    assert not gone(child)
    task.send_signal(signal.SIGKILL)
    task.wait()
    assert wait_until(lambda: gone(child))


def test_a_childs_python_finds_what_comes_first(tmp_path):
    path = python_environment(tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert path[0] == str(tmp_path)
    probe = subprocess.run(
        [sys.executable, "-c", "import slime_hpc"], env=python_environment() | {"PWD": "/"}, cwd="/", capture_output=True, text=True
    )
    assert probe.returncode == 0, probe.stderr
