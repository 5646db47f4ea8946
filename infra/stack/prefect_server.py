"""Run Prefect's server behind the authentication proxy: python -m infra.stack.prefect_server URL

`prefect server start` is the same server without the check of the Host header, and imports Prefect's command line first.
"""

import os
import sys

from infra.stack.auth_proxy import credential_of


def main(url: str) -> None:
    """Serve Prefect's API and pages until the process ends."""
    credential = credential_of(os.environ)
    import uvloop

    from infra.stack.prefect_app import create_app
    from infra.stack.serve import serve

    uvloop.run(serve(create_app(), url, credential))


if __name__ == "__main__":
    main(*sys.argv[1:])
