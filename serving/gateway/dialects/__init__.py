"""The clients' dialects, a module each: the apps, /openapi.json and the metrics read this one list."""

import re

from serving.gateway.dialects.base import Dialect, Fields
from serving.gateway.dialects.continue_ import CONTINUE, RLINF
from serving.gateway.dialects.llama import LLAMA
from serving.gateway.dialects.native import NATIVE
from serving.gateway.dialects.openai import OPENAI
from serving.gateway.dialects.proxyai import PROXYAI
from serving.gateway.dialects.tabby import TABBY
from serving.gateway.dialects.twinny import TWINNY
from serving.gateway.dialects.zed import ZED

DIALECTS: tuple[Dialect, ...] = (OPENAI, TABBY, PROXYAI, TWINNY, LLAMA, CONTINUE, RLINF, ZED, NATIVE)
"""The first that recognizes a request names its client; the first format of a path is the default."""
CLIENT_NAMES = frozenset(dialect.name for dialect in DIALECTS if dialect.name)
"""The names that metrics count one by one."""
PRODUCT = re.compile(r"(?:^|[\s(;,])([^\s()/;,]+)/")
"""Names of products in a User-Agent (RFC 9110, 10.1.5), also in its comments: "Visual Studio Code/1.103.0 (Continue/2.1.0)"."""
UNSAFE = re.compile(r"[^\w.+-]")


def client_name(headers: Fields, body: Fields | None = None) -> str:
    """Return the name of the dialect that the User-Agent names or that recognizes the body, else the User-Agent's product."""
    agent = headers.get("user-agent", "")
    products = set(PRODUCT.findall(agent.lower()))
    for dialect in DIALECTS:
        if dialect.agent in products:
            return dialect.name
    if body is not None:
        for dialect in DIALECTS:
            if dialect.name and dialect.recognizes(body, headers):
                return dialect.name
    return UNSAFE.sub("", agent.split("/")[0])[:32] or "unknown"
