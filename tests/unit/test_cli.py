"""The command line: flags reach the settings, faults are one line, imports stay light."""

import os
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from types import ModuleType

import pytest

from server.cli import main
from server.reference import settings_as_markdown, settings_as_yaml
from server.settings import Settings

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that reach ``server.app.run``, in place of a running server."""
    calls: list[Settings] = []

    def run(settings: Settings) -> int:
        calls.append(settings)
        return 7

    app = ModuleType("server.app")
    app.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "server.app", app)
    monkeypatch.setattr("server.logs.configure_logging", lambda settings: None)
    return calls


def test_serve_returns_the_exit_code_of_the_server(served: list[Settings]) -> None:
    assert main(["serve"]) == 7
    assert [Settings()] == served


def test_flags_win_over_the_file(served: list[Settings], tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("model: a\nhttp: {host: b, port: 1, max_body_bytes: 2}")
    flags = "--model m --host h --port 0 --log-level error"
    main(["serve", "--config", str(config), *flags.split()])

    (settings,) = served
    assert (
        settings.model,
        settings.http.host,
        settings.http.port,
        settings.http.max_body_bytes,
        settings.log.level,
    ) == ("m", "h", 0, 2, "error")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "http.port: 70000 (command line) must be less than or equal to"),
        (["--config", "/absent.yaml"], "can not read /absent.yaml: No such file or directory"),
        (["--log-level", "loud"], "log.level: 'loud' (command line) must be 'debug', 'info'"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    served: list[Settings],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert main(["serve", *arguments]) == 2

    output = capsys.readouterr()
    assert output.err.startswith(f"video-chat-server: error: {message}")
    assert len(output.err.splitlines()) == 1
    assert output.out == ""
    assert served == []


def test_demo_hands_over_config_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Path | None, str | None]] = []

    def run_demo(config: Path | None, *, model: str | None = None) -> int:
        calls.append((config, model))
        return 3

    module = ModuleType("server.demo.run")
    module.run_demo = run_demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "server.demo.run", module)

    assert main(["demo", "--config", "demo.yaml", "--model", "m"]) == 3
    assert main(["demo"]) == 3
    assert [(Path("demo.yaml"), "m"), (None, None)] == calls


@pytest.mark.parametrize("arguments", [[], ["bake"], ["serve", "--port", "x"], ["serve", "extra"]])
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2


def test_settings_prints_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    assert settings_as_yaml() == capsys.readouterr().out
    assert main(["settings", "--format", "markdown"]) == 0
    assert settings_as_markdown() == capsys.readouterr().out


def test_the_module_and_the_console_script_print_the_version() -> None:
    command = [sys.executable, "-m", "server", "--version"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    (script,) = entry_points(group="console_scripts", name="video-chat-server")

    assert f"video-chat-server {version('video-chat-server')}\n" == output.stdout
    assert main is script.load()


def test_a_misspelt_variable_stops_the_process() -> None:
    output = subprocess.run(
        [sys.executable, "-m", "server", "serve"],
        env={**os.environ, "VIDEO_CHAT_HTTP__PROT": "1"},
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )

    assert (output.returncode, output.stdout) == (2, "")
    assert (
        output.stderr == "video-chat-server: error: unknown key http.prot = 1"
        " (environment variable VIDEO_CHAT_HTTP__PROT); did you mean http.port?\n"
    )


def test_the_plugin_is_registered_with_vllm() -> None:
    (plugin,) = entry_points(group="vllm.general_plugins", name="per_request_evs")

    assert plugin.value == "server.evs.plugin:register"


def test_what_a_decoder_process_imports_again_is_light() -> None:
    heavy = {"vllm", "torch", "fastapi", "pydantic", "yaml", "numpy", "av"}
    code = f"import sys, server.__main__; sys.exit(repr({heavy!r} & set(sys.modules) or ''))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY
    )

    assert output.stderr == "''\n"
