"""The judge against a real vLLM server with guided decoding: the small base follows the schema, whatever it thinks."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from evals.bench.rigs.apps import plain_vllm
from infra import settings as configuration
from infra.settings import DEMO
from infra.settings.evaluation import Judge
from tasks.evaluation.heldout.build import held_out_positions
from tasks.evaluation.judge import Item, Scored, build
from tasks.evaluation.judge.calibration import calibrate
from tests.serving import processes
from tests.tasks.made import MemoryStore

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
"""The base has no chat template of its own."""
POSITIONS = 1024
"""Of the base model, for rubric, code and answer."""

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The base URL of a server of the base model that answers chats."""
    folder = tmp_path_factory.mktemp("judge")
    state = processes.state_of(folder)
    (state / "logs").mkdir(parents=True)
    (folder / "template.jinja").write_text(TEMPLATE)
    shipped = configuration.load(DEMO, {})
    arguments = shipped.serving.engine_arguments | {
        "max_model_len": POSITIONS,
        "max_num_seqs": 8,
        "chat_template": str(folder / "template.jinja"),
        "structured_outputs_config": json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
    }
    serving = shipped.serving.model_copy(update={"engine_arguments": arguments})
    stack = shipped.stack.model_copy(update={"state": state})
    settings = shipped.model_copy(update={"serving": serving, "stack": stack})
    async with aiohttp.ClientSession() as http, plain_vllm(settings, http) as at:
        yield at.removesuffix("/completions")


def judge_of(url: str, tmp_path: Path, **fields: object) -> Judge:
    rubric = tmp_path / "rubric.md"
    rubric.write_text('Score the completion from 0 to 10. Answer {"score": number}.')
    given = {"context_characters": 200, "calibration_places": 120, "concurrency": 8, "rubric": rubric}
    return Judge.model_validate({"kind": "openai", "url": url, "model": "plain", **given, **fields})


async def test_calibration_and_judgements_run_and_a_judge_that_cannot_tell_has_no_vote(url: str, tmp_path: Path) -> None:
    settings, places = judge_of(url, tmp_path), held_out_positions(120, 1)
    found = calibrate(build(settings), places, settings.calibration_places)
    assert (found.judge, found.places + found.failures) == ("plain", 120)
    assert found.failures <= 12, f"{found}: guided decoding gives a score"
    assert found.auc is not None and found.low is not None and found.high is not None
    assert found.low <= found.auc <= found.high and not found.counts, "a model of 4 M parameters knows no quality"
    assert f"AUC {found.auc:.3f} [{found.low:.3f}, {found.high:.3f}] at {found.places} places" in found.reason
    print(f"calibration: {found.reason}, {found.failures} failures")
    store = MemoryStore()
    items = [Item(p.prefix, p.suffix, p.truth, p.truth) for p in places[:6]]
    judgements = build(settings, store).score(items)
    assert all(isinstance(one, Scored) and one.score in range(11) for one in judgements), judgements
    assert build(settings, store).score(items) == judgements


async def test_code_that_does_not_fit_the_model_is_a_counted_failure(url: str, tmp_path: Path) -> None:
    long = [Item("x = [1, 2, 3]\n" * 900, "", "y", "y")]
    (failed,) = build(judge_of(url, tmp_path, context_characters=20_000)).score(long)
    assert not isinstance(failed, Scored) and failed.kind == "declined"
    (fits,) = build(judge_of(url, tmp_path, context_characters=100)).score(long)
    assert isinstance(fits, Scored)
