"""A team's own repositories as training data: the first version of a new team, before anybody has typed.

holes       functions and blocks of a file
repository  the files of a directory, or of an address that git clones
places      positions as editors ask, without secrets
code        repositories -> samples and held-out places
report      what a candidate gained on the held-out files
"""
