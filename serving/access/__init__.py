"""Who may do what: tokens with their users, projects, roles and rates, and the team's OpenID Connect issuer.

`tabloop token NAME` makes a token; `tabloop hash NAME` prints the keyed hash under which a user is stored.
"""

from serving.access.callers import Access, Caller
from serving.access.credentials import Credential, Denied

__all__ = ["Access", "Caller", "Credential", "Denied"]
