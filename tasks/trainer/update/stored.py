"""The samples of an update in a file that all ranks of a machine map; a rank reads only the tokens that it packs.

The first rank of a machine checks the samples and writes them uncompressed beside its output. All of its ranks map that file into
their memory: they read every sample's fields and the lengths of its token lists, and a list itself only where it is used.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.records import Sample

LISTS = {"prompt_token_ids": pa.int64(), "token_ids": pa.int64(), "settled_token_ids": pa.int64(), "logprobs": pa.float64()}
"""Fields of a sample that hold a value for each token, with the type of the values."""
ROWS = 4096
"""Samples that are decoded at once."""


class StoredList(Sequence[Any]):
    """A list of numbers in a mapped file, which is read where its elements are asked for."""

    __slots__ = ("_end", "_start", "_values")

    def __init__(self, values: np.ndarray, start: int, end: int) -> None:
        """Take elements `start` to `end` of the values."""
        self._values, self._start, self._end = values, start, end

    def __len__(self) -> int:
        """Return the number of elements, without reading one."""
        return self._end - self._start

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Read an element or a slice."""
        return self._values[self._start : self._end][index].tolist()

    def __iter__(self) -> Iterator[Any]:
        """Read all elements."""
        return iter(self._values[self._start : self._end].tolist())

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence, element by element."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)


def store(path: Path, target: Path, vocabulary: int, positions: int) -> None:
    """Check the samples of a Parquet file and write them, atomically, as an Arrow file to map.

    Raises:
        ValueError: names the sample, the field, the value and what was expected.
    """
    source, partial = pq.ParquetFile(path), target.with_name(target.name + ".partial")
    if not source.metadata.num_rows:
        raise ValueError(f"{path}: no samples, expected at least one; a cycle waits for collect.min_samples")
    writer = None
    with pa.OSFile(str(partial), "wb") as sink:
        for batch in source.iter_batches(ROWS):
            table = _with_plain_lists(pa.Table.from_batches([batch]))
            for sample in _samples_of(table):
                _check(sample, positions)
            for name in LISTS:
                _check_values(table, name, vocabulary)
            writer = writer or pa.ipc.new_file(sink, table.schema)
            writer.write_table(table)
        assert writer
        writer.close()
    partial.rename(target)


def opened(path: Path) -> list[Sample]:
    """Return the samples of a file that `store` wrote; their lists are StoredList, which read the mapped file."""
    return list(_samples_of(pa.ipc.open_file(pa.memory_map(str(path))).read_all()))


def _with_plain_lists(table: pa.Table) -> pa.Table:
    """Give each list column its type: that of a column of empty lists is unknown, and older files lack settled_token_ids."""
    for name, kind in LISTS.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.list_(kind)))
        else:
            table = table.append_column(name, pa.array([[]] * table.num_rows, pa.list_(kind)))
    return table.combine_chunks()


def _samples_of(table: pa.Table) -> Iterator[Sample]:
    fields = [name for name in table.column_names if name not in LISTS]
    empty = dict.fromkeys(LISTS, ())
    for batch in table.to_batches():
        lists = {name: _lists_of(batch.column(name)) for name in LISTS}
        for row, fields_of_row in enumerate(batch.select(fields).to_pylist()):
            sample = Sample.model_validate(fields_of_row | empty)
            yield sample.model_copy(update={name: StoredList(*lists[name](row)) for name in LISTS})


def _lists_of(column: pa.ListArray) -> Any:
    values, offsets = column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy().tolist()
    return lambda row: (values, offsets[row], offsets[row + 1])


def _refuse(sample: str, name: str, value: object, expected: str) -> None:
    raise ValueError(f"sample {sample}: {name} = {value!r}, expected {expected}")


def _check(sample: Sample, positions: int) -> None:
    """Refuse a sample by its fields and the lengths of its lists."""
    name = sample.completion_id
    if not sample.prompt_token_ids:
        _refuse(name, "prompt_token_ids", (), "at least one token")
    if not sample.token_ids and not sample.settled_token_ids:
        _refuse(name, "token_ids", (), "at least one token, there or in settled_token_ids")
    if len(sample.token_ids) != len(sample.logprobs):
        _refuse(name, "logprobs", f"{len(sample.logprobs)} values", f"one for each of {len(sample.token_ids)} token_ids")
    for field in ("token_ids", "settled_token_ids"):
        length = len(sample.prompt_token_ids) + len(getattr(sample, field))
        if length > positions:
            _refuse(name, field, f"{length} tokens with the prompt", f"at most {positions}, the model's positions")
    if not math.isfinite(sample.advantage):
        _refuse(name, "advantage", sample.advantage, "a finite number")
    if not 0 <= sample.settled_weight < math.inf:
        _refuse(name, "settled_weight", sample.settled_weight, "a finite number, 0 or above")
    if not sample.temperature > 0:
        _refuse(name, "temperature", sample.temperature, "above 0: greedy sampling is not a policy that can be trained")


def _check_values(table: pa.Table, name: str, vocabulary: int) -> None:
    """Refuse a token outside the vocabulary, and an invalid log-probability."""
    column = table[name].chunk(0)
    values, offsets = column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy()
    if name == "logprobs":
        good, expected = np.isfinite(values) & (values <= 1e-3), "a finite log-probability"
    else:
        good, expected = (values >= 0) & (values < vocabulary), f"a token id below {vocabulary}"
    if not good.all():
        at = int((~good).argmax())
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        _refuse(table["completion_id"][row].as_py(), name, values[at].item(), expected)
