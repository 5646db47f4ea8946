"""Metrics of a completion.

similarity  to the real text
habits      of a text by itself: repetition, comments
identifiers names in a completion against those of the true text
syntax      of the file after the insertion
place       all metrics of a completion at a place
intervals   means over places, with intervals by file
"""

from tasks.evaluation.metrics.similarity import distance, edit_similarity, exact, first_line

__all__ = ["distance", "edit_similarity", "exact", "first_line"]
