"""Samples are read where their tokens are used, and bad ones are refused by name."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.trainer.update import stored
from tasks.trainer.update.batches import micro_batches
from tests.tasks.trainer.update.made import GOOD


def write_samples(folder, *samples):
    pq.write_table(pa.Table.from_pylist([s.model_dump() for s in samples]), folder / "samples.parquet")
    return folder / "samples.parquet"


def read(path):
    stored.store(path, path.with_suffix(".arrow"), 10, 5)
    return stored.opened(path.with_suffix(".arrow"))


def test_valid_samples_are_read_as_written(tmp_path):
    other = GOOD.model_copy(update={"completion_id": "cmpl-2", "token_ids": (9,), "logprobs": (0.0,)})
    assert read(write_samples(tmp_path, GOOD, other)) == [GOOD, other]


def test_samples_of_a_file_without_settled_text_are_read(tmp_path):
    """Files of earlier versions lack the column, and a column of empty lists has no type."""
    older = pa.Table.from_pylist([GOOD.model_dump(exclude={"settled_token_ids", "settled_weight"})])
    pq.write_table(older, tmp_path / "samples.parquet")
    assert read(tmp_path / "samples.parquet") == [GOOD]


def test_the_samples_of_several_groups_of_rows_are_micro_batches_as_if_they_were_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "ROWS", 2)
    rows = [
        GOOD.model_copy(
            update={"prompt_token_ids": (i % 9, 1), "settled_token_ids": (2,) * (i % 3), "completion_id": f"cmpl-{i}"}
        )
        for i in range(7)
    ]
    samples = read(write_samples(tmp_path, *rows))
    assert samples == rows
    ours, theirs = (micro_batches(part, range(7), 64, context=1, settled=True) for part in (samples, rows))
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("tokens", "at", "targets", "behaviour", "settled_targets", "context_targets"):
            assert getattr(mine, name).tolist() == getattr(other, name).tolist()


def test_a_list_is_read_where_it_is_used_and_its_length_is_known_before(tmp_path):
    """The values of others are bytes of a mapped file: changed on disk, they change in the list, which holds none of them."""
    path = write_samples(tmp_path, GOOD, GOOD.model_copy(update={"prompt_token_ids": (7, 7, 7)}))
    target = tmp_path / "samples.arrow"
    stored.store(path, target, 10, 5)
    _, second = stored.opened(target)
    assert len(second.prompt_token_ids) == 3
    body, sevens = target.read_bytes(), (7).to_bytes(8, "little") * 3
    assert body.count(sevens) == 1
    with target.open("r+b") as file:
        file.seek(body.index(sevens))
        file.write((8).to_bytes(8, "little") * 3)
    assert second.prompt_token_ids == (8, 8, 8)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"logprobs": (-0.5,)}, "logprobs", "1 values"),
        ({"logprobs": (-0.5, math.nan)}, "logprobs", "nan"),
        ({"logprobs": (-0.5, -math.inf)}, "logprobs", "-inf"),
        ({"logprobs": (-0.5, 0.3)}, "logprobs", "0.3"),
        ({"token_ids": (), "logprobs": ()}, "token_ids", "()"),
        ({"prompt_token_ids": ()}, "prompt_token_ids", "()"),
        ({"token_ids": (4, 10)}, "token_ids", "10"),
        ({"settled_token_ids": (4, 10)}, "settled_token_ids", "10"),
        ({"settled_token_ids": (4, 5, 6)}, "settled_token_ids", "6 tokens"),
        ({"settled_token_ids": (4,), "settled_weight": math.inf}, "settled_weight", "inf"),
        ({"prompt_token_ids": (-1, 2)}, "prompt_token_ids", "-1"),
        ({"prompt_token_ids": (1, 2, 3, 4)}, "token_ids", "6 tokens"),
        ({"advantage": math.nan}, "advantage", "nan"),
        ({"temperature": 0.0}, "temperature", "0.0"),
        ({"temperature": math.nan}, "temperature", "nan"),
    ],
)
def test_a_bad_sample_is_refused_with_id_field_and_value(tmp_path, change, field, value):
    bad = GOOD.model_copy(update={"completion_id": "cmpl-bad", **change})
    with pytest.raises(ValueError) as error:
        read(write_samples(tmp_path, GOOD, bad))
    for part in ("cmpl-bad", field, value, "expected"):
        assert part in str(error.value)


def test_an_empty_file_is_refused(tmp_path):
    empty = pa.Table.from_pylist([GOOD.model_dump()]).slice(0, 0)
    pq.write_table(empty, tmp_path / "samples.parquet")
    with pytest.raises(ValueError, match="no samples"):
        read(tmp_path / "samples.parquet")
