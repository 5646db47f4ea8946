"""The meaning of each quarantine reason, for people. infra/docs/how/labels.md holds the same table."""

REASONS: dict[str, str] = {
    "secret": "the code around the cursor held a secret, so the record has no tokens",
    "mixed_weights": "the engine's weights changed during the completion",
    "no_logprobs": "the server did not return the log-probabilities of the distribution that it sampled from",
    "cut_distribution": "it was sampled with top_p below 1, and the trainer computes log-probabilities of the full distribution",
    "engine_error": "the engine failed during the completion",
    "unknown_policy_version": "the registry lacks the version that made it",
    "no_tokens": "it has feedback, but no tokens were sampled",
    "malformed": "the row is not a valid completion record",
    "outcome_is_known": "its outcome is not one that training knows",
    "prompt_is_not_empty": "its prompt has no tokens",
    "completion_is_not_empty": "its completion has no tokens",
    "every_token_has_a_logprob": "its number of log-probabilities differs from its number of tokens",
    "logprobs_are_finite": "a log-probability is below -100 or is not finite",
    "logprobs_are_not_above_zero": "a log-probability is above 0",
    "temperature_is_positive": "its temperature is not above 0, or is above 2",
    "accepted_is_within_shown": "more characters were accepted than shown",
    "kept_is_within_shown": "more characters stand in the settled text than were shown",
}
"""Reasons of tasks/labels/accounting.py and infra/storage/events/read.py, then the expectations in
tasks/validation/expectations.json that quarantine a row."""
