"""What a stack was started with is remembered, and a later start is compared with it."""

import json
from pathlib import Path

import pytest

from infra import settings as settings_
from infra.settings import TEAM, SettingsError, load
from infra.settings.sources import environment_of_parts, remembered, started_with
from infra.stack import started
from infra.stack.parts import environment


def given(state: Path, **variables: str) -> dict[str, str]:
    return {
        "TABLOOP_SETTINGS": str(TEAM),
        "TABLOOP_STACK__STATE": str(state),
        **{f"TABLOOP_{n}": v for n, v in variables.items()},
    }


def start(state: Path, **variables: str) -> None:
    """Remember and note what a start with these variables does."""
    shell = given(state, **variables)
    with started.remember(state, started_with(None, shell)):
        started.note(state, load(None, shell))


def test_another_shell_gets_what_the_stack_was_started_with(tmp_path: Path) -> None:
    start(tmp_path, SERVING__PORT="9000", TRAIN__EPOCHS="5")
    other = load(None, {"TABLOOP_STACK__STATE": str(tmp_path)})
    assert (other.serving.port, other.train.epochs) == (9000, 5)


def test_a_start_that_fails_leaves_what_was_remembered_before(tmp_path: Path) -> None:
    start(tmp_path, SERVING__PORT="9000")
    with pytest.raises(KeyError), started.remember(tmp_path, started_with(None, given(tmp_path, SERVING__PORT="1"))):
        raise KeyError
    before = remembered(tmp_path)
    assert before and before.variables["TABLOOP_SERVING__PORT"] == "9000"


def test_a_remembered_variable_that_this_release_refuses_is_named_with_what_forgets_it(tmp_path: Path) -> None:
    start(tmp_path, TRAIN__EPOCHS="5")
    file = tmp_path / "started_with.json"
    file.write_text(file.read_text().replace("EPOCHS", "WARMUP_STEPS"))
    other = {"TABLOOP_STACK__STATE": str(tmp_path)}
    with pytest.raises(SettingsError, match=r"WARMUP_STEPS, remembered by .*: `tabloop up --settings FILE` forgets it"):
        load(None, other)
    assert load(None, {**other, "TABLOOP_SETTINGS": "team"}).train.epochs == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"train": 3}', "\xff"])
def test_a_file_of_the_state_directory_that_was_edited_is_named_with_what_to_do(text: str, tmp_path: Path) -> None:
    start(tmp_path)
    for name in (started.SETTINGS_NAME, "started_with.json"):
        (tmp_path / name).write_text(text, encoding="latin-1")
    settings = load(None, given(tmp_path))
    expected = f"{tmp_path}/{{}}: expected what `tabloop up` wrote: .*; remove it, then `tabloop up --settings FILE`"
    with pytest.raises(SettingsError, match=expected.format("settings.json")):
        started.check(tmp_path, settings)
    with pytest.raises(SettingsError, match=expected.format("started_with.json")):
        load(None, {"TABLOOP_STACK__STATE": str(tmp_path)})


def test_a_changed_setting_of_the_flows_needs_no_restart(tmp_path: Path) -> None:
    start(tmp_path)
    changed = load(None, given(tmp_path, TRAIN__EPOCHS="5", EXPERIMENT__ALPHA="0.1"))
    assert started.check(tmp_path, changed) == [
        "train.epochs: 2 -> 5, from the next run of the flows on",
        "experiment.alpha: 0.05 -> 0.1, from the next run of the flows on",
    ]


def test_a_run_of_a_flow_reads_the_changed_setting_without_a_restart(tmp_path: Path) -> None:
    """The worker's environment names the state directory alone, so what is remembered holds at each run."""
    start(tmp_path)
    shell = {**given(tmp_path, TRAIN__EPOCHS="7"), "PATH": "/bin"}
    of_worker = environment(load(None, shell), environment_of_parts(shell, tmp_path))
    assert not [name for name in of_worker if name.startswith("TABLOOP_") and name != "TABLOOP_STACK__STATE"]
    assert load(None, of_worker).train.epochs == 2
    start(tmp_path, TRAIN__EPOCHS="9")
    assert load(None, of_worker).train.epochs == 9


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (
            {"SERVING__SAMPLING__TEMPERATURE": "0.5"},
            ["serving.sampling.temperature: 0.1 -> 0.5 (restart: serving)", "restart serving`"],
        ),
        (
            {"STORE__BUCKET": "b", "SERVING__PORT": "1"},
            ['store.bucket: "tabloop" -> "b" (restart: stack)', "`tabloop restart` with"],
        ),
    ],
)
def test_a_setting_that_running_parts_read_is_named_with_what_must_restart(
    variables: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    start(tmp_path)
    with pytest.raises(started.OtherSettings) as error:
        started.check(tmp_path, load(None, given(tmp_path, **variables)))
    assert not [word for word in words if word not in str(error.value)]


def test_a_restart_of_serving_takes_its_settings_alone(tmp_path: Path) -> None:
    start(tmp_path)
    assert started.check(tmp_path, load(None, given(tmp_path, SERVING__PORT="1")), "serving") == []
    with pytest.raises(started.OtherSettings, match=r"store\.bucket"):
        started.check(tmp_path, load(None, given(tmp_path, SERVING__PORT="1", STORE__BUCKET="b")), "serving")


def test_commands_mean_a_stack_elsewhere_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default, other = tmp_path / "default", tmp_path / "other"
    default.mkdir()
    monkeypatch.delenv("TABLOOP_STACK__STATE", raising=False)
    monkeypatch.setattr(started, "default_state", lambda: default)
    file = tmp_path / "demo.toml"
    file.write_text(f'extends = "team.toml"\n[stack]\nstate = "{other}"\n')
    with started.remember(other, started_with(file, {})):
        pass
    assert Path(json.loads((default / "elsewhere.json").read_text())["state"]) == other
    assert list(started.others(default)) == [other] and list(started.others(other)) == [default]
    started.stopped(default)
    assert (default / "elsewhere.json").exists(), "another stack was stopped"
    started.stopped(other)
    assert not (default / "elsewhere.json").exists() and remembered(other)
    assert settings_.path(load(file, {}).stack.state) == other
