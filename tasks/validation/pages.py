"""The pages of a validation: an HTML file for each suite, which loads and runs nothing. They hold counts, figures and ids of
completions, and no text of a developer."""

from pathlib import Path

from jinja2 import StrictUndefined, Template

from tasks.validation.suite import Validation

TEMPLATE = Template(Path(__file__).with_name("page.html").read_text(), autoescape=True, undefined=StrictUndefined)


def pages(validation: Validation) -> dict[str, str]:
    """Return the page of each suite by its name."""
    names = dict.fromkeys(check.suite for check in validation.checks)
    return {
        name: TEMPLATE.render(
            suite=name, rows=validation.rows, checks=[check for check in validation.checks if check.suite == name]
        )
        for name in names
    }
