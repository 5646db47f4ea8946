"""The script of a backup (operate/restore.md), run by real programs, and the mark that it leaves in the bucket."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from evals.bench.rigs import postgresql
from evals.bench.rigs.postgresql import PostgreSQL
from evals.bench.rigs.servers import DATABASES
from infra.settings import ROOT
from infra.settings.schema import Store as StoreSettings
from infra.stack.postgresql import ROLE
from infra.storage import backups
from infra.storage.store import ObjectStore
from tests.serving.fakes import House
from tests.serving.test_loop_metrics import Bucket
from tests.serving.test_metrics import scrape, value
from tests.stack import free_ports
from tests.tasks.made import NOW

PAGE = (ROOT / "infra/docs/operate/restore.md").read_text()
BUCKETS = ("acme-tabloop", "acme-backup")


def bucket(endpoint: str, name: str) -> ObjectStore:
    given = {"endpoint": endpoint, "bucket": name, "access_key": "k", "secret_key": "s"}
    store = ObjectStore.connect(StoreSettings.model_validate(given))
    store.ensure_bucket()
    return store


def back_up(folder: Path, endpoint: str, database: PostgreSQL) -> subprocess.CompletedProcess[str]:
    """Run the page's script in a folder."""
    folder.mkdir()
    (script,) = re.findall(r"^```sh\n(set -eu\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    given = {
        **{"PATH": f"{postgresql.programs()}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)},
        **{"PGHOST": "127.0.0.1", "PGPORT": str(database.port), "PGUSER": ROLE, "PGPASSWORD": database.password},
        **{"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"},
        **{name: text for name, text in os.environ.items() if name.startswith("PYENV_")},
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    return subprocess.run(("sh", "-c", script), cwd=folder, env=given, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.stack
def test_the_script_of_the_page_copies_everything_and_marks_its_time(moto: str, tmp_path: Path) -> None:
    if shutil.which("aws") is None:
        pytest.skip("aws is not installed (Debian's package `awscli`)")
    store, copy = (bucket(moto, name) for name in BUCKETS)
    store.put("events/completions/x.parquet", b"events")
    (port,) = free_ports(1)
    with postgresql.running(port, tmp_path / "log", (*DATABASES[1:], "empty")) as database:
        database.query("mlflow", "CREATE TABLE versions AS SELECT 7 AS version")
        failed = back_up(tmp_path / "failed", moto, database)
        assert failed.returncode != 0 and 'database "prefect" does not exist' in failed.stderr, failed.stderr
        assert backups.last(store, time.time()) is None, "a backup that failed leaves no mark"
        database.query("postgres", f"CREATE DATABASE {DATABASES[0]}")
        began = time.time()
        done = back_up(tmp_path / "done", moto, database)
        assert done.returncode == 0, done.stderr
        marked = backups.last(store, time.time())
        assert marked is not None and int(began) <= marked <= time.time()
        assert copy.get("bucket/events/completions/x.parquet") == b"events"
        (tmp_path / "mlflow.dump").write_bytes(copy.get("databases/mlflow.dump"))
        database.restore("empty", tmp_path / "mlflow.dump")
        assert database.query("empty", "SELECT version FROM versions") == "7"


@pytest.mark.parametrize("text", ["", "2026-11-26T10:00:00Z", "1800000000000", "-5", "nan", "soon"])
def test_a_mark_that_is_no_time_is_refused(text: str) -> None:
    store = Bucket()
    store.put(backups.KEY, text.encode())
    with pytest.raises(ValueError, match=r"s3://tabloop/backups/last: .*: expected the Unix time .*`date \+%s \| aws s3 cp -"):
        backups.last(store, NOW)


async def test_a_scrape_has_the_time_of_the_last_backup_or_says_that_its_mark_is_wrong(house: House) -> None:
    series = await scrape(house)
    assert value(series, "backup_timestamp_seconds") is None and value(series, "loop_unread", part="backup") == 0
    house.store.objects[backups.KEY] = b"1700000000\n"
    house.clock += 10
    assert value(await scrape(house), "backup_timestamp_seconds") == 1_700_000_000
    house.store.objects[backups.KEY] = b"yesterday"
    house.clock += 10
    series = await scrape(house)
    assert value(series, "loop_unread", part="backup") == 1
    assert value(series, "backup_timestamp_seconds") == 1_700_000_000, "the alert goes on by the one before"
