"""Events name the credential that they came with, so that training and the gate can bound what one credential does."""

import hashlib
from pathlib import Path

from tokenizers import Tokenizer

from infra.identity import HASH
from tests.serving.fakes import House


async def test_events_hold_a_hash_of_the_tokens_name(tmp_path: Path, tokenizer: Tokenizer) -> None:
    digest = hashlib.sha256(b"of-ada").hexdigest()
    async with House(tmp_path, tokenizer, settings={"tokens": {"ada": {"sha256": digest}}}) as house:
        for headers in ({"Authorization": "Bearer of-ada"}, {}):
            assert (await house.complete(headers=headers)).status_code == 200
            body = {"completion_id": "c", "outcome": "accepted"}
            assert (await house.send_feedback("/v1/feedback", body, headers)).status_code == 200
        of_ada, of_editors = (row.credential for row in house.rows("completions"))
        assert of_ada != of_editors and HASH.fullmatch(of_ada) and "ada" not in of_ada
        assert [row.credential for row in house.rows("feedback")] == [of_ada, of_editors]
