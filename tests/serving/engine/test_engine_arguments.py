"""An engine refuses, before it imports vLLM, arguments of another setting, or with which vLLM 0.32 serves wrong results."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import serving.engine
from infra.settings import ROOT, Settings, load
from infra.settings.schema import Evaluate, Serving
from serving.engine.__main__ import check_arguments, checkpoints_of, choose_model, environment, main
from serving.engine.graphs import graphs
from serving.engine.version_cache import origin_of
from serving.engine.where import evaluation_address, slot_address
from tests.stack import free_ports


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"enable_lora": True}, "set serving.adapters"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "n-gram speculation"),
        ({"spec_method": "ngram"}, "n-gram speculation"),
    ],
)
def test_arguments_of_another_setting_or_with_wrong_results_are_refused(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(SystemExit, match=f"serving.engine_arguments.{next(iter(arguments))} = .*{reason}"):
        check_arguments(arguments)


def test_other_arguments_are_accepted() -> None:
    check_arguments({"enable_lora": False, "speculative_config": None, "max_model_len": 512, "enable_prefix_caching": False})


def test_a_gpus_engine_runs_prompts_of_the_shipped_lengths_in_cuda_graphs() -> None:
    for name in ("workstation", "production"):
        settings = load(ROOT / f"infra/settings/{name}.toml", {})
        arguments, model = settings.serving.engine_arguments, settings.model
        sizes = graphs(arguments, False)["cudagraph_capture_sizes"]
        assert sizes[-1] >= model.max_prefix_tokens + model.max_suffix_tokens + arguments["max_num_seqs"] // 2
        assert sizes == sorted(set(sizes)) and arguments["max_num_seqs"] in sizes, "every batch of one token each is in one"
    assert graphs({}, True)["cudagraph_specialize_lora"] is False, "each request has an adapter"


def test_what_the_arguments_say_about_cuda_graphs_stays() -> None:
    assert graphs({"max_cudagraph_capture_size": 64}, False) == {}
    given = {"cudagraph_capture_sizes": [1, 8], "cudagraph_specialize_lora": True, "mode": 3}
    assert graphs({"compilation_config": given}, True) == given


def test_the_evaluations_engine_needs_a_token_of_its_own() -> None:
    with pytest.raises(SystemExit, match=r"evaluate\.engine_token is not set: .*TABLOOP_EVALUATE__ENGINE_TOKEN"):
        evaluation_address(Settings(serving=Serving(engine_token="secret")))
    own = Evaluate(engine_url="http://127.0.0.1:1", engine_token="own")
    where = evaluation_address(Settings(evaluate=own))
    assert (where.url, where.token, where.host, where.port) == ("http://127.0.0.1:1", "own", "127.0.0.1", 1)
    assert choose_model(Settings(), None) == (ROOT / "infra/base_model", "0")


def test_the_evaluations_engine_and_the_slots_have_disks_of_their_own(tmp_path: Path) -> None:
    settings = Settings(serving=Serving(state=tmp_path))
    version = "evaluation-0123456789abcdef"
    for slot, folder in ((0, "engine-0"), (None, "engine-evaluation")):
        made = tmp_path / folder / "versions" / version
        made.mkdir(parents=True)
        (made / "source.txt").write_text("s3://tabloop/checkpoints/cycle-000001")
        got = checkpoints_of(settings, slot)
        assert got.fetch(version, "s3://tabloop/checkpoints/cycle-000001").path == made
        got.loaded(version, made)
        assert got.last(slot or 0) is None, "what an evaluation loads is not what the slot begins with"


def test_an_engine_names_the_weights_that_were_there_before_it_loaded_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app replaces the folder while the engine starts: it may have loaded either, so a load of the new ones must count."""
    model, given, (port,) = tmp_path / "7", list[object](), free_ports(1)
    shutil.copytree(ROOT / "infra/base_model", model)
    (model / "source.txt").write_text("s3://old/checkpoints/a")
    before = origin_of(model)

    def build_llm(*_: object) -> None:
        (model / "source.txt").write_text("s3://new/checkpoints/b")
        (model / "model.safetensors").unlink()

    async def serve(_: object, version: str, origin: object, *rest: object) -> int:
        given.extend((version, origin))
        return 0

    fake = SimpleNamespace(build_llm=build_llm, serve=serve)
    monkeypatch.setitem(sys.modules, "serving.engine.server", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(serving.engine, "server", fake, raising=False)
    monkeypatch.setenv("TABLOOP_SERVING__ENGINE_TOKEN", "t")
    monkeypatch.setenv("TABLOOP_SERVING__ENGINES", json.dumps([f"http://127.0.0.1:{port}", "http://127.0.0.1:1"]))
    words = ["--slot", "0", "--model", str(model), "--version", "7"]
    assert main(words, dict.fromkeys(environment(load()), "")) == 0
    assert given == ["7", before] and origin_of(model) != before


def test_an_engine_behind_a_services_name_listens_on_an_address_of_its_machine() -> None:
    (port,) = free_ports(1)
    serving = Serving(engine_token="t", engines=(f"http://engine-0.tabloop.svc:{port}", "http://engine-1.tabloop.svc"))
    with pytest.raises(SystemExit, match=rf"cannot listen on engine-0\.tabloop\.svc:{port}.*set serving.engine_host"):
        slot_address(Settings(serving=serving), 0).check()
    bound = Settings(serving=serving.model_copy(update={"engine_host": "0.0.0.0"}))
    where = slot_address(bound, 0)
    where.check()
    assert (where.url, where.host, where.port) == (serving.engines[0], "0.0.0.0", port)
    assert slot_address(bound, 1).port == 80
    with socket.create_server(("127.0.0.1", port)):
        every = Settings(serving=serving.model_copy(update={"engine_host": "::"}))
        with pytest.raises(SystemExit, match=rf"cannot listen on :::{port}.*in use"):
            slot_address(every, 0).check()


def test_a_taken_port_is_reported_before_the_engine_is_built() -> None:
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        address = f"http://127.0.0.1:{owner.getsockname()[1]}"
        serving = Serving(engine_token="t", engines=(address, "http://127.0.0.1:1"))
        with pytest.raises(SystemExit, match=r"in use.*if the port is taken"):
            slot_address(Settings(serving=serving), 0).check()


def test_an_engine_with_a_refused_argument_exits_with_the_reason(tmp_path: Path) -> None:
    variables = {
        "TABLOOP_SERVING__ENGINE_ARGUMENTS": json.dumps({"enable_lora": True}),
        "TABLOOP_STACK__STATE": str(tmp_path / "stack"),
    }
    command = [sys.executable, "-m", "serving.engine", "--slot", "0"]
    process = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1 and "serving.engine_arguments.enable_lora" in process.stderr
