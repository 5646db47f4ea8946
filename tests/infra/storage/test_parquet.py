"""Tables as Parquet: the same bytes for the same rows, and a compression that suits their number."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.storage.parquet import FEW_ROWS, packed


@pytest.mark.parametrize(("rows", "compression"), [(1, "SNAPPY"), (FEW_ROWS, "SNAPPY"), (FEW_ROWS + 1, "ZSTD")])
def test_equal_tables_give_equal_bytes_and_few_rows_take_no_costly_compression(rows: int, compression: str) -> None:
    table = pa.table({"id": [f"{number}" for number in range(rows)], "time": [float(number) for number in range(rows)]})
    longer = pa.concat_tables([table, table])
    body = packed(table)
    assert body == packed(table) == packed(longer.slice(0, rows)) == packed(longer.slice(rows))
    file = pq.ParquetFile(pa.BufferReader(body))
    assert file.read() == table and file.metadata.row_group(0).column(0).compression == compression
