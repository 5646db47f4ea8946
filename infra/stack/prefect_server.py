"""Run Prefect's server behind a door: python -m infra.stack.prefect_server URL

`prefect server start` is the same server without the check of the Host header, and imports Prefect's command line first.
"""

import os
import sys
from urllib.parse import urlsplit

from infra.stack.door import Door, credential_of


def main(url: str) -> None:
    """Serve Prefect's API and pages until the process ends."""
    address, credential = urlsplit(url), credential_of(os.environ)
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    keep_alive = get_current_settings().server.api.keepalive_timeout
    uvicorn.run(
        Door(create_app(final=True), url, credential),
        host=str(address.hostname),
        port=address.port or 80,
        timeout_keep_alive=keep_alive,
        proxy_headers=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
