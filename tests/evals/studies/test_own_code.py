"""The update of a study of own code, which a second call uses again."""

from pathlib import Path

import pytest

from evals.base_model import update
from evals.studies.own_code import trained
from infra import settings as configuration


class Trainer:
    """Stands for the trainer: writes the samples that it read in place of a checkpoint; may be killed midway."""

    def __init__(self) -> None:
        self.runs, self.killed = 0, False

    def __call__(self, command: tuple[str, ...], log: Path, *_: object) -> None:
        self.runs += 1
        checkpoint = log.parent / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        if self.killed:
            raise KeyboardInterrupt
        (checkpoint / "made_of").write_bytes((log.parent / "samples.parquet").read_bytes())


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    made = Trainer()
    monkeypatch.setattr(update, "follow", made)
    return made


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_an_update_is_used_again_for_the_same_samples_settings_and_weights_alone(
    trainer: Trainer, base: Path, tmp_path: Path
) -> None:
    settings, out = configuration.load(configuration.TEAM, {}), tmp_path / "out"
    for _ in range(2):
        assert (trained(b"first", base, settings, out) / "made_of").read_bytes() == b"first"
    assert trainer.runs == 1
    assert (trained(b"second", base, settings, out) / "made_of").read_bytes() == b"second"
    (base / "model.safetensors").write_bytes(b"other weights")
    trained(b"second", base, settings, out)
    longer = settings.train.model_copy(update={"epochs": settings.train.epochs + 1})
    trained(b"second", base, settings.model_copy(update={"train": longer}), out)
    assert trainer.runs == 4


def test_the_update_before_does_not_stand_for_one_that_was_killed(trainer: Trainer, base: Path, tmp_path: Path) -> None:
    settings, out = configuration.load(configuration.TEAM, {}), tmp_path / "out"
    trained(b"first", base, settings, out)
    trainer.killed = True
    with pytest.raises(KeyboardInterrupt):
        trained(b"second", base, settings, out)
    trainer.killed = False
    assert (trained(b"second", base, settings, out) / "made_of").read_bytes() == b"second"
    trainer.killed = True
    with pytest.raises(KeyboardInterrupt):
        trained(b"third", base, settings, out)
    trainer.killed = False
    trained(b"second", base, settings, out)
    assert trainer.runs == 5, "the killed update may have touched the checkpoint"
