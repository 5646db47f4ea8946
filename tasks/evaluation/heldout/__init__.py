"""Evaluation sets: places in code at which models are scored, and which are not in their training data.

packages    installed packages of Python that the shipped base model never saw
directory   files of any directory of code, in any language
benchmarks  public benchmarks from local files
duplicates  copies between code that is scored and code that is not
sets        a set in the object store
build       the sets that the settings name

The team's own set needs the labels of its requests, so tasks/evaluation/cycle_sets.py makes it.
"""

from tasks.evaluation.heldout.packages import HELD_OUT_PACKAGES, held_out_files, read_source, site_packages

__all__ = ["HELD_OUT_PACKAGES", "held_out_files", "read_source", "site_packages"]
