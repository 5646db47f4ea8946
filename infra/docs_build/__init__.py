"""Make the sources of the documentation's site: the written pages of infra/docs, generated pages, and diagrams drawn as SVG.

`make docs` runs it, then MkDocs in an environment of its own (infra/mkdocs.yml). Nothing here imports MkDocs or another room.
"""
