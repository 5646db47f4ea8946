"""Run MLflow's server in one process behind the authentication proxy: python -m infra.stack.mlflow_server URL DATABASE ARTIFACTS

`mlflow server` imports MLflow, sets the variables below and starts a second Python that imports it again, which doubles the start
time and takes 250 MB more. This module is the same server without the first process. MLflow's own basic-auth app would take
0.1 s of CPU for each request, since it hashes the password every time, and a database of its own; MLflow's own check of origins
admits the pages of every port of this machine.
"""

import os
import sys
import uuid

from infra.stack.auth_proxy import credential_of


def main(url: str, database: str, artifacts: str) -> None:
    """Serve MLflow until the process ends."""
    credential = credential_of(os.environ)
    # Named as in mlflow/server/constants.py; importing it reads them, so they are set first.
    os.environ |= {
        "_MLFLOW_SERVER_FILE_STORE": database,
        "_MLFLOW_SERVER_REGISTRY_STORE": database,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": artifacts,
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SERVER_BOOT_ID": uuid.uuid4().hex,
        "_MLFLOW_SGI_NAME": "uvicorn",
        "_MLFLOW_IN_JOB_EXECUTOR": "false",
        "MLFLOW_ENABLE_WORKSPACES": "false",
    }
    import uvloop
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    from infra.stack.serve import serve

    initialize_backend_stores(database, database, "mlflow-artifacts:/")
    uvloop.run(serve(app, url, credential))


if __name__ == "__main__":
    main(*sys.argv[1:])
