"""Removes secrets, and if configured personal data, from code before it is stored, and cuts it to the stored part.

patterns, named_values, contexts, randomness, private_keys, personal: detectors over the bytes of a text, linear in its length
classify        whether a value is a secret, not a placeholder, message or code
file_kind       whether values stand in quotes in the file
scanner         all detectors: text -> spans
texts           the texts of an event, and the part of them that is kept
redactor        texts -> texts without secrets, also those across the cursor
events          the texts of each kind of event
worker          a process that redacts long texts
"""
