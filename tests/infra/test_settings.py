"""Settings: every shipped file parses, every field is described, and errors name the invalid value."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, SecretStr

from evals.docs import settings_page
from infra import settings as settings_
from infra.settings import DEMO, DEMO_ADAPTERS, PRODUCTION, ROOT, TEAM, WORKSTATION, Settings, SettingsError, load, release
from infra.settings.in_force import EFFECTS, description, in_force
from infra.settings.serving import External
from infra.stack import addresses
from infra.stack.parts import parts

MOST_SETTINGS = 220
SHIPPED = sorted((ROOT / "infra/settings").glob("*.toml"))


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the path and type of every section of the settings."""
    yield path, model
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from sections(field.annotation, f"{path}.{name}".lstrip("."))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_every_shipped_file_parses(file: Path) -> None:
    assert isinstance(load(file, {}), Settings)


def test_the_files_of_teams_demo_workstation_and_production_are_shipped() -> None:
    assert {TEAM, DEMO, DEMO_ADAPTERS, WORKSTATION, PRODUCTION} == set(SHIPPED)


def test_prefect_yaml_parses_and_its_entry_points_exist() -> None:
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert len({d["name"] for d in deployments}) == len(deployments)
    for deployment in deployments:
        path, function = deployment["entrypoint"].split(":")
        assert f"def {function}(" in (ROOT / path).read_text()


def test_production_uses_aws_without_keys_and_a_model_as_judge() -> None:
    settings = load(PRODUCTION, {"TABLOOP_STACK__STATE": "/nowhere"})
    assert settings.store.endpoint is None
    assert settings.store.access_key is None and settings.serving.token is None
    assert settings.evaluate.judge.kind == "openai"
    assert settings.train.processes % (settings.train.tensor_parallel * settings.train.pipeline_parallel) == 0
    assert settings.train.keep_optimizer


def test_only_the_stack_of_one_machine_is_in_experiments_by_default() -> None:
    experiments = {file: load(file, {"TABLOOP_STACK__STATE": "/nowhere"}).serving.terms.experiments for file in SHIPPED}
    assert experiments == {TEAM: True, DEMO: True, DEMO_ADAPTERS: True, WORKSTATION: True, PRODUCTION: False}


def test_the_settings_of_a_team_are_for_people() -> None:
    """Nobody speaks for others, the settled text of people is waited for, and a test judges by the defaults."""
    settings = load(TEAM, {})
    assert not settings.serving.name_users
    collect = settings.collect
    assert collect.settle_seconds >= collect.hindsight.most_seconds + settings.serving.ship_seconds
    assert (collect.hindsight.quiet_seconds, collect.hindsight.most_seconds, collect.join_seconds) == (10.0, 300.0, 600.0)
    assert settings.experiment == Settings().experiment


def test_the_demo_has_data_of_its_own_and_the_servers_of_a_team() -> None:
    team, demo = load(TEAM, {}), load(DEMO, {})
    assert demo.serving.name_users
    own = [(s.stack.state, s.store.lock, s.serving.spool, s.serving.state, s.train.folder) for s in (team, demo)]
    assert all(one != other for one, other in zip(*own, strict=True))
    assert (demo.store.endpoint, demo.serving.port, demo.model) == (team.store.endpoint, team.serving.port, team.model)


@pytest.mark.parametrize(("path", "model"), list(sections(Settings)), ids=lambda value: value if isinstance(value, str) else "")
def test_every_field_has_a_description(path: str, model: type[BaseModel]) -> None:
    assert [f"{path}.{name}" for name, field in model.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(("path", "model"), list(sections(Settings)), ids=lambda value: value if isinstance(value, str) else "")
def test_every_section_is_frozen_and_refuses_unknown_keys(path: str, model: type[BaseModel]) -> None:
    assert model.model_config.get("frozen") and model.model_config.get("extra") == "forbid"


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        ("[serving]\nprot = 1", {}, ["serving.prot", "1", "no such setting"]),
        ("[serving]\nport = 'x'", {}, ["serving.port", "'x'", "valid integer"]),
        ("", {"TABLOOP_SERVING__PROT": "1"}, ["serving.prot", "'1'", "no such setting"]),
        ("", {"TABLOOP_SERVING__SAMPLING__TEMPERATURE": "0"}, ["serving.sampling.temperature", "'0'", "greater than 0"]),
        ("[orchestration]\ndask_scheduler = 'dask:8786'", {}, ["orchestration.dask_scheduler", "'dask:8786'", "tcp|tls"]),
        ("[collect]\nmin_samples = 5000", {}, ["max_samples = 4096", "expected at least min_samples = 5000"]),
        ("[collect.hindsight]\nquiet_seconds = 300", {}, ["quiet_seconds = 300", "expected less than most_seconds = 300"]),
        (
            "[experiment]\nplanned_requests = 400",
            {},
            ["experiment: planned_requests = 400", "expected 0, or at least min_requests = 500", "lower min_requests"],
        ),
        ("[train]\ndual_clip = 3.0", {}, ["train.dual_clip", "3.0", "constants now", "`tabloop settings show --all`"]),
        ("[serving]\nprot = 1", {}, ["did you mean serving.port"]),
        ("[serving.sampling]\ntemprature = 1", {}, ["did you mean serving.sampling.temperature"]),
        ("[servng]\nport = 1", {}, ["did you mean serving"]),
        ("", {"TABLOOP_SERVING__ENGINES": "[http://a]"}, ["TABLOOP_SERVING__ENGINES", "JSON", "double quotes"]),
        ("[serving]\nport = 1", {"TABLOOP_SERVING__PORT__X": "1"}, ["TABLOOP_SERVING__PORT__X", "serving.port is a setting"]),
        ("", {"TABLOOP_NOTHING": "1"}, ["nothing", "no such setting"]),
        ("[serving", {}, ["not TOML"]),
        ("[serving]\nport = 70_000", {}, ["serving.port", "70000", "65535"]),
        ("[serving]\nport = true", {}, ["serving.port = True", "expected a number, got true"]),
        ("[serving.sampling]\nmax_tokens = true", {}, ["serving.sampling.max_tokens = True", "expected a number, got true"]),
        ("[collect]\nsettle_seconds = inf", {}, ["collect.settle_seconds = inf", "finite number"]),
        ("[serving]\nhosts = 'a'", {}, ["serving.hosts = 'a'", "expected a list"]),
        ("[serving]\nlimits = 5", {}, ["serving.limits = 5", "expected a table"]),
        ("[serving.projects.'a b']\nlogged = false", {}, ["serving.projects.a b: String should match pattern"]),
        ("[serving]\nfeedback_port = 8081", {}, ["feedback_port = 8081", "expected another port than serving.port"]),
        ("[store]\nendpoint = '127.0.0.1:9000'", {}, ["store.endpoint", "'127.0.0.1:9000'", "expected http://HOST:PORT"]),
        ("[registry]\nuri = 'http://mlflow:99999'", {}, ["registry.uri", "99999", "a port from 1 to 65535"]),
        ("[orchestration]\napi = 'http://[::1'", {}, ["orchestration.api", "expected http://HOST:PORT"]),
        ("", {"TABLOOP_STACK__STATE": ""}, ["stack.state = ''", "expected a directory of its own"]),
        ("[serving]\nspool = 'var/..'", {}, ["serving.spool = 'var/..'", "where relative paths start"]),
        ("[evaluate]\nengine_url = 'gpu-7'", {}, ["evaluate.engine_url", "'gpu-7'", "expected http://HOST:PORT"]),
        ("[serving]\nengines = ['http://a:0', 'http://b:1']", {}, ["serving.engines.0", "'http://a:0'", "1 to 65535"]),
        ("[serving]\nengines = ['http://u:p@a:1', 'http://b:1']", {}, ["serving.engines.0", "without credentials"]),
    ],
)
def test_the_error_names_the_invalid_setting(tmp_path: Path, text: str, environment: dict[str, str], words: list[str]) -> None:
    file = tmp_path / "some.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load(file, environment)
    named = [] if words[0] in environment else [str(file)]
    assert [word for word in [*named, *words] if word not in str(error.value)] == []


ODD = [
    ("stack = 3", "stack = 3: "),
    ("[stack]\nstate = 3", "stack.state = 3: "),
    ("serving = 3", "serving = 3: "),
    ("store = 3", "store = 3: "),
    ("[store]\nendpoint = 3", "store.endpoint = 3: "),
    ("[registry]\nuri = 'http://[::1'", "registry.uri = 'http://[::1': "),
]


@pytest.mark.parametrize(("text", "words"), ODD)
def test_what_is_no_table_or_address_is_named_beside_a_stacks_secrets(text: str, words: str, tmp_path: Path) -> None:
    keys = "".join(f'[{section}]\nsecret = "made"\n' for section in ("store", "registry", "serving"))
    (tmp_path / "secrets.toml").write_text(keys)
    (tmp_path / "tokens.toml").write_text("")
    (tmp_path / "some.toml").write_text(text)
    given = {} if "stack" in text else {"TABLOOP_STACK__STATE": str(tmp_path)}
    with pytest.raises(SettingsError) as error:
        load(tmp_path / "some.toml", given)
    assert f"  {words}" in str(error.value)


def test_a_byte_order_mark_before_the_settings_is_left_out(tmp_path: Path) -> None:
    (file := tmp_path / "notepad.toml").write_bytes(b"\xef\xbb\xbf[serving]\r\nport = 8085\r\n")
    assert load(file, {}).serving.port == 8085


def test_a_rule_between_settings_names_the_file_that_breaks_it(tmp_path: Path) -> None:
    file = written(tmp_path, below="[serving.sampling]\ntemperature = 0.1", own='extends = "below.toml"\n[serving]\nport = 8082')
    with pytest.raises(SettingsError) as error:
        load(file, {})
    assert str(error.value).endswith(
        f"\n  serving: feedback_port = 8082, expected another port than serving.port ({tmp_path}/own.toml)"
    )


def test_an_empty_name_of_a_file_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"TABLOOP_SETTINGS = '': expected a settings file, or the name of one in .*unset it"):
        load(None, {"TABLOOP_SETTINGS": ""})


@pytest.mark.parametrize(
    ("host", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "127.0.0.1"), ("10.0.0.7", "10.0.0.7")],
)
def test_the_app_is_reached_where_it_listens(host: str, reached: str) -> None:
    settings = Settings.model_validate({"serving": {"host": host}})
    urls = (settings.serving.completions_url, settings.serving.feedback_url)
    assert urls == (f"http://{reached}:8081", f"http://{reached}:8082")
    assert f"  completions  {urls[0]}/v1\n  feedback     {urls[1]}\n" in addresses.described(settings)
    assert ("serving" in parts(settings)) == (host != "10.0.0.7")


def written(folder: Path, **files: str) -> Path:
    """Write settings files by name; return the last."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


ADAPTERS = "[serving]\nadapters = 6\n"
OF_WEB = "[serving.projects.web]\nown_champion = true\n[train]\nadapter_rank = 8\n"
EXTERNAL = 'engines = ["http://127.0.0.1:1", {kind = "external", url = "http://127.0.0.1:2/v1", model = "m"}]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ADAPTERS, "train.adapter_rank = 0, expected 1 to 16 (serving.engine_arguments.max_lora_rank) with serving.adapters = 6"),
        (f"{ADAPTERS}[train]\nadapter_rank = 32\n", "train.adapter_rank = 32, expected 1 to 16"),
        (f"{ADAPTERS}[serving.engine_arguments]\nmax_lora_rank = 8\n[train]\nadapter_rank = 9\n", "9, expected 1 to 8"),
        (ADAPTERS + OF_WEB.replace("web", "reason"), "projects.reason.own_champion = true: expected a name of 1 to 20"),
        (ADAPTERS + EXTERNAL + OF_WEB, "engines: slot 1 is an external server, expected engines of tabloop with own_champion"),
    ],
    ids=("whole weights", "vLLM's own bound", "the bound that is set", "a loop of a tag", "a loop on an external server"),
)
def test_engines_of_adapters_and_what_is_trained_fit_together(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "own.toml").write_text('extends = "team.toml"\n' + text)
    with pytest.raises(SettingsError) as refused:
        load(tmp_path / "own.toml", {})
    assert words in str(refused.value)


def test_an_adapter_within_the_bound_may_be_trained_and_served(tmp_path: Path) -> None:
    for text in (ADAPTERS + OF_WEB, EXTERNAL.join(("[serving]\n", "[train]\nadapter_rank = 32\n"))):
        (tmp_path / "own.toml").write_text('extends = "team.toml"\n' + text)
        assert load(tmp_path / "own.toml", {}).train.adapter_rank in (8, 32)


def test_a_file_extends_others_and_the_environment_overrides_all(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        base='[serving]\nport = 1\nhosts = ["a", "b"]\n[serving.sampling]\nmax_tokens = 8\n',
        middle='extends = "base.toml"\n[serving]\nhosts = ["c"]\nfeedback_port = 2\n',
        top='extends = "middle.toml"\n[serving.sampling]\ntemperature = 0.5\n',
    )
    serving = load(file, {"TABLOOP_SERVING__FEEDBACK_PORT": "3"}).serving
    assert (serving.port, serving.feedback_port, serving.hosts) == (1, 3, ("c",))
    assert (serving.sampling.max_tokens, serving.sampling.temperature) == (8, 0.5)


def test_a_file_extends_a_shipped_one_by_its_name(tmp_path: Path) -> None:
    settings = load(written(tmp_path, own='extends = "team.toml"\n[serving]\nport = 9\n'), {})
    team = load(TEAM, {})
    assert settings == team.model_copy(update={"serving": team.serving.model_copy(update={"port": 9})})


def test_files_that_extend_each_other_and_missing_ones_are_refused_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, a='extends = "b.toml"', b='extends = "a.toml"')
    with pytest.raises(SettingsError, match=r"b\.toml: extends itself: .*b\.toml -> .*a\.toml -> .*b\.toml"):
        load(file, {})
    for value in ('"no.toml"', "1"):
        with pytest.raises(SettingsError, match=r"c\.toml: extends = .*expected a path relative to .* or one of .*team\.toml"):
            load(written(tmp_path, c=f"extends = {value}"), {})


def test_a_file_of_a_newer_release_is_refused_with_both_versions(tmp_path: Path) -> None:
    here = release.installed()
    major, minor, patch = map(int, here.split("."))
    for older in (here, "0.0.9"):
        assert load(written(tmp_path, a=f'release = "{older}"\nextends = "team.toml"\n'), {}) == load(TEAM, {})
    for newer in (f"{major}.{minor}.{patch + 1}", f"{major}.{minor + 10}.0", f"{major + 1}.0.0"):
        file = written(tmp_path, a=f'release = "{newer}"\n[serving]\nnew_setting = 1\n')
        with pytest.raises(SettingsError, match=rf"a\.toml: release = '{newer}': .*this code, {here} .*checkout of {newer}, or"):
            load(file, {})
    below = written(tmp_path, a='release = "99.0.0"', b='extends = "a.toml"')
    with pytest.raises(SettingsError, match=r"a\.toml: release = '99.0.0'"):
        load(below, {})
    for value in ('"new"', "0.2"):
        with pytest.raises(SettingsError, match=r"c\.toml: release = .*: expected the release that the file is written for"):
            load(written(tmp_path, c=f"release = {value}"), {})


def test_an_error_names_the_file_or_variable_of_the_wrong_value(tmp_path: Path) -> None:
    base, variable = '[serving]\nport = "x"\n', {"TABLOOP_TRAIN__EPOCHS": "0"}
    file = written(tmp_path, base=base, top='extends = "base.toml"\n[serving]\nprot = 1\n')
    with pytest.raises(SettingsError) as error:
        load(file, variable)
    lines = {line.split(" = ")[0].strip(): line for line in str(error.value).splitlines()[1:]}
    assert f"({tmp_path / 'base.toml'})" in lines["serving.port"] and f"({file})" in lines["serving.prot"]
    assert "(TABLOOP_TRAIN__EPOCHS)" in lines["train.epochs"]


def test_there_are_few_settings() -> None:
    """Numbers that protect are constants beside their code; a setting is what a team really sets."""
    rows = [line.split("|")[1] for line in settings_page.page().splitlines() if line.startswith("| <a id=")]
    assert len(rows) == len(set(rows)) <= MOST_SETTINGS


def test_the_error_for_a_missing_file_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TABLOOP_SETTINGS"):
        load(None, {"TABLOOP_SETTINGS": str(tmp_path / "no.toml")})


def test_the_error_for_an_invalid_secret_hides_its_value() -> None:
    with pytest.raises(SettingsError) as error:
        load(TEAM, {"TABLOOP_SERVING__TOKEN": '["s3cr3t"]'})
    assert "serving.token" in str(error.value) and "s3cr3t" not in str(error.value)


def test_the_environment_overrides_the_file_and_the_file_overrides_generated_secrets(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text('[serving]\nport = 1\ntoken = "of the file"\n')
    (tmp_path / "secrets.toml").write_text('[serving]\ntoken = "generated"\nuser_secret = "generated"\n')
    settings = load(file, {"TABLOOP_STACK__STATE": str(tmp_path), "TABLOOP_SERVING__PORT": "2", "PATH": "/bin"})
    assert settings.serving.port == 2
    assert settings.serving.token and settings.serving.token.get_secret_value() == "of the file"
    assert settings.serving.user_secret and settings.serving.user_secret.get_secret_value() == "generated"


def test_generated_store_keys_are_used_for_the_local_server_only(tmp_path: Path) -> None:
    generated = '[store]\naccess_key = "local"\nsecret_key = "local"\n[registry]\npassword = "local"\n'
    generated += '[orchestration]\nauth_string = "tabloop:local"\n[serving]\ntoken = "t"\n'
    (tmp_path / "secrets.toml").write_text(generated)
    local = load(TEAM, {"TABLOOP_STACK__STATE": str(tmp_path)})
    production = load(PRODUCTION, {"TABLOOP_STACK__STATE": str(tmp_path)})
    assert local.store.access_key and production.store.access_key is None
    assert local.registry.password and production.registry.password is None
    assert local.orchestration.auth_string and production.orchestration.auth_string is None
    assert production.serving.token


def test_lists_and_null_in_the_environment_are_json() -> None:
    engines = '["http://127.0.0.1:1", "http://127.0.0.1:2"]'
    settings = load(TEAM, {"TABLOOP_SERVING__ENGINES": engines, "TABLOOP_STORE__ENDPOINT": "null"})
    assert settings.serving.engines == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert settings.store.endpoint is None


def test_dump_masks_secrets_and_contains_every_section() -> None:
    secret = {"TABLOOP_STORE__SECRET_KEY": "s3cr3t", "TABLOOP_EVALUATE__JUDGE__API_KEY": "s3cr3t"}
    text = settings_.dump(load(TEAM, secret))
    assert "s3cr3t" not in text
    assert set(json.loads(text)) == set(Settings.model_fields)


def test_dump_and_errors_mask_credentials_in_urls_and_in_tables_that_are_passed_on() -> None:
    given = {
        "TABLOOP_REGISTRY__URI": "http://user:s3cr3t@mlflow:5000",
        "TABLOOP_SERVING__ENGINE_ARGUMENTS": '{"hf_token": "s3cr3t", "dtype": "float32"}',
        "TABLOOP_TRAIN__ENVIRONMENT": '{"TRACKER_API_KEY": "s3cr3t"}',
    }
    shown = json.loads(text := settings_.dump(load(TEAM, given)))
    assert "s3cr3t" not in text and shown["registry"]["uri"] == "http://(hidden)@mlflow:5000"
    assert shown["serving"]["engine_arguments"] == {"hf_token": "**********", "dtype": "float32"}
    with pytest.raises(SettingsError) as error:
        load(TEAM, {"TABLOOP_SERVING__PORT": "http://user:s3cr3t@host"})
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    ["REGISTRY__PASSWORD", "REGISTRY__TOKEN", "ORCHESTRATION__AUTH_STRING", "ORCHESTRATION__WEBHOOK", "SERVING__ENGINE_TOKEN"],
)
def test_credentials_are_secrets(name: str) -> None:
    assert "s3cr3t" not in settings_.dump(load(TEAM, {f"TABLOOP_{name}": "s3cr3t"}))
    with pytest.raises(SettingsError) as error:
        load(TEAM, {f"TABLOOP_{name}": '["s3cr3t"]'})
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *("SERVING__TOKEN", "SERVING__ADMIN_TOKEN", "SERVING__SIMULATION_TOKEN", "SERVING__ENGINE_TOKEN"),
        *("EVALUATE__ENGINE_TOKEN", "EVALUATE__JUDGE__API_KEY", "REGISTRY__TOKEN", "STORE__ACCESS_KEY", "ORCHESTRATION__WEBHOOK"),
    ],
)
def test_a_line_end_behind_what_requests_carry_is_no_part_of_it(name: str) -> None:
    for end in ("", "\n", "\r\n"):
        value: object = load(TEAM, {f"TABLOOP_{name}": f"s3cr3t{end}"})
        for part in name.lower().split("__"):
            value = getattr(value, part)
        assert isinstance(value, SecretStr) and value.get_secret_value() == "s3cr3t"
    engine = {"kind": "external", "url": "http://vllm:8000/v1", "model": "m", "token": "s3cr3t\n"}
    found = load(TEAM, {"TABLOOP_SERVING__ENGINES": json.dumps([engine, "http://127.0.0.1:18101"])}).serving.engines[0]
    assert isinstance(found, External) and found.token == SecretStr("s3cr3t")


def test_the_key_of_users_hashes_stays_as_it_is() -> None:
    secret = load(TEAM, {"TABLOOP_SERVING__USER_SECRET": "salt\n"}).serving.user_secret
    assert secret == SecretStr("salt\n"), "another key would make every user another one"


def test_settings_are_frozen() -> None:
    settings = load(TEAM, {})
    for part in (settings, settings.serving, settings.serving.sampling):
        for name in type(part).model_fields:
            with pytest.raises(ValueError, match="frozen"):
                setattr(part, name, 1)


def test_importing_settings_imports_no_large_library() -> None:
    large_libraries = ("torch", "vllm", "megatron", "mlflow", "prefect", "boto3")
    code = f"import sys, infra.settings; print([m for m in {large_libraries} if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_what_the_stack_was_started_with_holds_where_the_environment_names_no_file(tmp_path: Path) -> None:
    file = written(tmp_path, own='extends = "team.toml"\n[serving]\nport = 9\nfeedback_port = 8\n')
    state = {"TABLOOP_STACK__STATE": str(tmp_path)}
    variables = {**state, "TABLOOP_SERVING__FEEDBACK_PORT": "7", "TABLOOP_TRAIN__EPOCHS": "5"}
    (tmp_path / "started_with.json").write_text(json.dumps({"file": str(file), "variables": variables}))
    serving = load(None, state | {"TABLOOP_SERVING__PORT": "6"}).serving
    assert (serving.port, serving.feedback_port) == (6, 7), "a variable of this shell, then a remembered one"
    assert load(None, state).train.epochs == 5 != load(TEAM, state).train.epochs
    assert load(None, state | {"TABLOOP_SETTINGS": str(TEAM)}) == load(TEAM, state), "a file that is named takes nothing over"


def test_a_memory_that_cannot_be_read_is_named_with_the_next_command(tmp_path: Path) -> None:
    (tmp_path / "started_with.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"started_with\.json: .*tabloop up --settings FILE"):
        load(None, {"TABLOOP_STACK__STATE": str(tmp_path)})


def test_a_shipped_file_is_found_by_its_name() -> None:
    assert load(None, {"TABLOOP_SETTINGS": "demo"}) == load(DEMO, {}) == load(None, {"TABLOOP_SETTINGS": "demo.toml"})


def test_each_setting_has_its_origin_and_what_makes_a_change_hold(tmp_path: Path) -> None:
    file = written(tmp_path, own='extends = "team.toml"\n[train]\nepochs = 3\n')
    (tmp_path / "secrets.toml").write_text('[serving]\ntoken = "made"\n')
    given = {"TABLOOP_STACK__STATE": str(tmp_path), "TABLOOP_SERVING__PORT": "6"}
    found = in_force(file, given)
    origins = {
        key: found[key].origin for key in ("train.epochs", "serving.port", "model.fim_order", "serving.token", "reward.silence")
    }
    assert origins == {
        "train.epochs": str(file),
        "serving.port": "TABLOOP_SERVING__PORT",
        "model.fim_order": str(TEAM),
        "serving.token": "generated",
        "reward.silence": "default",
    }
    assert found["serving.token"].value == "**********"
    assert [found[key].effect for key in ("train.epochs", "serving.port", "model.fim_order")] == ["next run", "serving", "stack"]


def test_every_setting_has_a_description_and_an_effect() -> None:
    found = in_force(TEAM, {})
    assert all(description(key) for key in found)
    assert {each.effect for each in found.values()} == {"next run", "serving", "stack"}
    assert set(EFFECTS) <= set(settings_.names(Settings)), "an entry for a setting that is gone"


@pytest.mark.parametrize(("names", "end"), [(["PORT"], "; next: "), (["PORT", "FEEDBACK_PORT"], "\n  next: ")])
def test_a_program_ends_with_what_is_wrong_and_the_next_step(names: list[str], end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in names:
        monkeypatch.setenv(f"TABLOOP_SERVING__{name}", "x")
    with pytest.raises(SystemExit) as ended:
        settings_.load_for("serving")
    text = str(ended.value)
    assert text.startswith("serving: ") and text.endswith(f"{end}correct it in the file or the environment, then start it again")
    assert text.count("\n") == (0 if len(names) == 1 else 3) and f"serving.{names[0].lower()} = 'x'" in text
