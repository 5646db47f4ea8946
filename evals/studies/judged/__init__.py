"""A judge in place of developers, for teams with no traffic yet: `tabloop study judged`."""
