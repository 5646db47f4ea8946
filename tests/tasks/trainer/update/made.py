"""A sample for the tests of what reads and packs samples."""

from infra.records import Sample

GOOD = Sample(
    completion_id="cmpl-1",
    user="u",
    policy_version="1",
    prompt_token_ids=(1, 2, 3),
    token_ids=(4, 5),
    logprobs=(-0.5, -1.0),
    temperature=0.8,
    outcome="accepted",
    shown_characters=3,
    accepted_characters=3,
    advantage=0.5,
)
