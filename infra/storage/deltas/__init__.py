"""What changed between two versions: all that travels to a disk that holds the earlier one.

blocks.py     a block of a tensor, encoded against the block that it changed from
folders.py    a checkpoint's folder, encoded against its parent's, and made again from it
served.py     a checkpoint in the precision that engines load
stored.py     deltas in the object store: written at registration, fetched by what serves
"""
