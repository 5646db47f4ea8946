"""Make the sources of the documentation's site: the written pages of infra/docs and the generated pages.

`make docs` runs it, then MkDocs in an environment of its own (evals/docs/mkdocs.yml). Nothing here imports MkDocs.
"""
