"""Published patterns of secrets: tokens with a fixed part, found independent of the variable's name.

The list follows the detectors of detect-secrets and the published formats that gitleaks and trufflehog look for; the patterns are
written anew for RE2, whose time is linear in the length of the text (Cox 2010, "Regular Expression Matching in the Wild").

A search for all fixed parts ("anchors") passes over the text once. A pattern is tried only at its anchor, over at most REACH
bytes, so the cost stays linear for texts that consist of anchors.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import re2

REACH = 1_024
"""Bytes after the start of an anchor that a shape may need."""
Span = tuple[int, int]
"""Start and end of a secret in a text."""
HEX = "[0-9a-fA-F]"
UUID = f"{HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}}"


def compile_bytes(pattern: str, *, ignore_case: bool = False) -> "re2._Regexp":
    """Return a pattern over bytes; RE2 refuses look-around and back-references, which could backtrack."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = not ignore_case
    options.max_mem = 64 << 20
    return re2.compile(pattern.encode(), options)


@dataclass(frozen=True)
class Shape:
    """A kind of secret with a fixed part."""

    kind: str
    anchors: str
    """Fixed parts, separated by blanks, one of which every secret of the kind has, in this case."""
    pattern: str
    """RE2; the secret is its first group, else the whole match."""
    back: int = 0
    """Bytes before the anchor at which the pattern may begin; 0: it begins with the anchor, and not within a word."""


SHAPES = (
    # Cloud providers
    Shape("AWS access key", "AKIA ASIA ABIA ACCA AGPA AIDA AROA ANPA ANVA AIPA A3T", r"A[A-Z0-9]{3}[A-Z0-9]{12,17}\b"),
    Shape("AWS Bedrock key", "ABSK", r"ABSK[A-Za-z0-9+/]{40,}"),
    Shape("AWS MWS key", "amzn.mws.", rf"amzn\.mws\.{UUID}"),
    Shape("Google API key", "AIza", r"AIza[\w\-]{30,}"),
    Shape("Google OAuth secret", "GOCSPX-", r"GOCSPX-[\w\-]{20,}"),
    Shape("Google OAuth token", "ya29.", r"ya29\.[\w\-]{20,}"),
    Shape("Google refresh token", "1//0", r"1//0[\w\-]{30,}"),
    Shape("Azure client secret", "Q~", r"[\w~.\-]{3}[0-9]Q~[\w~.\-]{31,34}", back=4),
    Shape("Azure account key", "AccountKey= AccessKey=", r"Acc(?:ount|ess)Key=([A-Za-z0-9+/]{32,}={0,2})", back=1),
    Shape("Azure SAS signature", "sig=", r"[?&]sig=([A-Za-z0-9%+/]{30,}=?)", back=1),
    Shape("Azure function key", "?code=", r"\?code=([\w%\-/]{30,}={0,2})", back=1),
    Shape("Alibaba access key", "LTAI", r"LTAI[A-Za-z0-9]{12,}"),
    Shape("Tencent secret id", "AKID", r"AKID[A-Za-z0-9]{28,}"),
    Shape("Yandex key", "AQVN y0_ t1.", r"(?:AQVN[\w\-]{35,}|y0_[\w\-]{50,}|t1\.[A-Z0-9a-z_\-]{20,}[=]{0,2}\.[\w\-]{40,})"),
    Shape("DigitalOcean token", "doo_v1_ dop_v1_ dor_v1_", r"do[opr]_v1_[a-f0-9]{40,}"),
    Shape("Databricks token", "dapi dose dkea", r"(?:dapi|dose|dkea)[a-f0-9]{32}"),
    Shape("Heroku key", "HRKU-", r"HRKU-[\w\-]{36,}"),
    Shape("Cloudflare origin key", "v1.0-", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{60,}"),
    Shape("Fly.io token", "fo1_ FlyV1", r"(?:fo1_[\w\-]{40,}|FlyV1 fm[12][ar]?_[A-Za-z0-9+/=,_\-]{40,})"),
    Shape("Scalingo token", "tk-us-", r"tk-us-[\w\-]{40,}"),
    Shape("PlanetScale token", "pscale_", r"pscale_(?:tkn|oauth|pw|app_secret)_[\w.\-]{20,}"),
    Shape("Neon key", "napi_", r"napi_[a-z0-9]{40,}"),
    Shape("Supabase key", "sbp_ sb_secret_", r"(?:sbp_[a-f0-9]{32,}|sb_secret_[\w\-]{20,})"),
    Shape("Deno Deploy token", "ddp_ ddo_ ddw_", r"dd[pow]_[A-Za-z0-9]{32,}"),
    Shape("CockroachDB key", "CCDB1_", r"CCDB1_[A-Za-z0-9]{20,}_[A-Za-z0-9]{20,}"),
    Shape("Confluent key", "cflt", r"cflt[A-Za-z0-9+/]{50,}"),
    # Source code and packages
    Shape("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9_]{20,}"),
    Shape("GitHub fine-grained token", "github_pat_", r"github_pat_\w{20,}"),
    Shape(
        "GitLab token",
        "glpat- glptt- glrt- gloas- gldt- glcbt- glft- glimt- glagent- glsoat- glffct- glrtr- GR1348941",
        r"(?:gl[a-z]{2,5}-|GR1348941)[\w\-.]{16,}",
    ),
    Shape("Bitbucket password", "ATBB", r"ATBB[A-Za-z0-9_=.\-]{24,}"),
    Shape("Atlassian token", "ATATT3 ATCTT3", r"AT[AC]TT3[\w=\-]{40,}"),
    Shape("npm token", "npm_", r"npm_[A-Za-z0-9]{30,}"),
    Shape("PyPI token", "pypi-AgE pypi-", r"pypi-AgE[\w\-]{40,}|pypi-[\w\-]{60,}"),
    Shape("RubyGems key", "rubygems_", r"rubygems_[a-f0-9]{32,}"),
    Shape("NuGet key", "oy2", r"oy2[a-z0-9]{43}"),
    Shape("Clojars token", "CLOJARS_", r"CLOJARS_[a-z0-9]{50,}"),
    Shape("Docker token", "dckr_pat_ dckr_oat_", r"dckr_[po]at_[\w\-]{20,}"),
    Shape("Artifactory token", "AKC AP", r"AKC[a-zA-Z0-9]{10,}\b|AP[0-9A-F][a-zA-Z0-9]{40,}"),
    Shape("Sourcegraph token", "sgp_ slk_", r"(?:sgp|slk)_[\w]{40,}"),
    Shape("SonarQube token", "squ_ sqp_ sqa_", r"sq[upa]_[a-f0-9]{40}"),
    Shape("CircleCI token", "CCIPAT_ CCIPRJ_", r"CCIP(?:AT|RJ)_\w{16,}"),
    Shape("Buildkite token", "bkua_", r"bkua_[a-f0-9]{40}"),
    Shape("Octopus Deploy key", "API-", r"API-[A-Z0-9]{25,}\b"),
    Shape("Pulumi token", "pul-", r"pul-[a-f0-9]{40}"),
    Shape("Terraform Cloud token", ".atlasv1.", r"[A-Za-z0-9]{10,14}\.atlasv1\.[\w\-=]{40,}", back=14),
    Shape("Vault token", "hvs. hvb. hvr.", r"hv[sbr]\.[\w\-]{20,}"),
    Shape("Doppler token", "dp.", r"dp\.(?:pt|st|sa|ct|scim|audit)\.[\w.\-]{20,}"),
    Shape("Infracost key", "ico-", r"ico-[A-Za-z0-9]{32}"),
    Shape("OpenShift token", "sha256~", r"sha256~[\w\-]{40,}"),
    Shape("Prefect key", "pnu_ pnb_", r"pn[ub]_[A-Za-z0-9]{30,}"),
    Shape("Harness token", "pat. sat.", r"[ps]at\.[\w\-]{22}\.[a-zA-Z0-9]{24}\.[A-Za-z0-9]{20}"),
    Shape("1Password token", "ops_eyJ A3-", r"ops_eyJ[\w+/]{40,}={0,3}|A3-[A-Z0-9]{6}-(?:[A-Z0-9]{5,6}-){3,5}[A-Z0-9]{5}"),
    Shape("age secret key", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-(?:PQ-)?1[A-Z0-9]{40,}"),
    Shape("Tailscale key", "tskey-", r"tskey-[a-z]+-[\w\-]{10,}"),
    # Models
    Shape("OpenAI, Anthropic, DeepSeek or OpenRouter key", "sk-", r"sk-(?:[a-z]{2,8}[0-9]{0,2}-)*[\w\-]{20,}"),
    Shape("Hugging Face token", "hf_ api_org_", r"(?:hf_|api_org_)[A-Za-z0-9]{20,}"),
    Shape("Groq key", "gsk_", r"gsk_[A-Za-z0-9]{32,}"),
    Shape("Replicate token", "r8_", r"r8_[A-Za-z0-9]{30,}"),
    Shape("Perplexity key", "pplx-", r"pplx-[A-Za-z0-9]{40,}"),
    Shape("xAI key", "xai-", r"xai-[A-Za-z0-9]{40,}"),
    Shape("LangSmith key", "lsv2_", r"lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}"),
    Shape("Pinecone key", "pcsk_", r"pcsk_[A-Za-z0-9_]{40,}"),
    Shape("Tavily key", "tvly-", r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{20,}"),
    Shape("NVIDIA key", "nvapi-", r"nvapi-[\w\-]{40,}"),
    Shape("Jina key", "jina_", r"jina_[\w\-]{40,}"),
    Shape("Together key", "tgp_v1_", r"tgp_v1_[\w\-]{30,}"),
    # Communication
    Shape(
        "Slack token",
        "xoxa- xoxb- xoxe xoxo- xoxp- xoxr- xoxs- xoxd- xoxc- xoxA- xoxB- xoxP-",
        r"xox[a-zA-Z](?:\.xox[a-z])?-[\w\-%]{4,}",
    ),
    Shape("Slack app token", "xapp-", r"xapp-[0-9]-[\w\-]{20,}"),
    Shape("Slack webhook", "hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows|triggers)/([\w+/]{20,})"),
    Shape("Discord token", "MD MT Mj Mz ND NT Nj Nz OD OT", r"[MNO][A-Za-z0-9_\-]{22,27}\.[\w\-]{6}\.[\w\-]{27,}"),
    Shape("Discord webhook", "/api/webhooks/", r"/api/webhooks/([0-9]{16,}/[\w\-]{40,})", back=1),
    Shape("Telegram bot token", ":AA", r"[0-9]{8,10}:AA[\w\-]{32,}", back=10),
    Shape("Teams webhook", "webhook.office.com/", r"webhook\.office\.com/webhookb2/([\w@\-/]{40,})", back=1),
    Shape("Zapier webhook", "hooks.zapier.com/", r"hooks\.zapier\.com/hooks/catch/([0-9]+/\w{6,})"),
    Shape("SendGrid key", "SG.", r"SG\.[\w\-]{16,}\.[\w\-]{16,}"),
    Shape("Twilio key", "SK AC", r"(?:SK|AC)[0-9a-f]{32}\b"),
    Shape("Mailgun key", "key- pubkey-", r"(?:pub)?key-[0-9a-f]{32}\b"),
    Shape("Mailchimp key", "-us", r"[0-9a-f]{32}-us[0-9]{1,2}\b", back=32),
    Shape("Brevo key", "xkeysib- xsmtpsib-", r"x(?:key|smtp)sib-[a-f0-9]{40,}"),
    Shape("Resend key", "re_", r"re_[A-Za-z0-9]{6,12}_[A-Za-z0-9]{20,}"),
    Shape("Postmark or Samsara token", "samsara_api_", r"samsara_api_[A-Za-z0-9]{20,}"),
    # Payments and shops
    Shape("Stripe key", "sk_live_ sk_test_ rk_live_ rk_test_ sk_prod_", r"[sr]k_(?:live|test|prod)_[A-Za-z0-9]{10,}"),
    Shape("Stripe webhook secret", "whsec_", r"whsec_[A-Za-z0-9+/]{20,}=?"),
    Shape("Square token", "sq0atp- sq0csp- sq0idp- EAAA", r"(?:sq0[a-z]{3}-[\w\-]{20,}|EAAA[\w\-]{56,})"),
    Shape("Facebook token", "EAA", r"EAA[A-Za-z0-9]{60,}"),
    Shape("Shopify token", "shpat_ shpca_ shppa_ shpss_", r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
    Shape("Shippo token", "shippo_", r"shippo_(?:live|test)_[a-f0-9]{40}"),
    Shape("Flutterwave key", "FLWSECK", r"FLWSECK(?:_TEST)?-[a-z0-9]{12,}"),
    Shape("EasyPost key", "EZAK EZTK", r"EZ[AT]K[A-Za-z0-9]{50,}"),
    Shape("Duffel token", "duffel_", r"duffel_(?:live|test)_[\w\-=]{40,}"),
    Shape("Braintree token", "access_token$", r"access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}"),
    Shape("Plaid token", "access-sandbox- access-development- access-production-", rf"access-[a-z]+-{UUID}"),
    Shape("GoCardless or Lob key", "live_ test_", r"(?:live|test)_(?:[a-f0-9]{35}|[A-Za-z0-9_\-]{40})\b"),
    # Other services
    Shape("Airtable token", "pat", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    Shape("Asana token", "0/ 1/ 2/", r"[0-9]/[0-9]{16}(?:/[0-9]{16})?:[a-f0-9]{32}"),
    Shape("Adobe secret", "p8e-", r"p8e-[A-Za-z0-9\-_]{32}"),
    Shape("Contentful token", "CFPAT-", r"CFPAT-[\w\-]{40,}"),
    Shape("Dropbox token", "sl.", r"sl\.(?:u\.)?[\w\-]{60,}"),
    Shape("Dynatrace token", "dt0", r"dt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    Shape("Figma token", "figd_ figo_", r"fig[do]_[\w\-]{40,}"),
    Shape("Frame.io token", "fio-u-", r"fio-u-[\w=\-]{40,}"),
    Shape("Grafana token", "glsa_ glc_", r"(?:glsa_[A-Za-z0-9]{32}_[a-fA-F0-9]{8}|glc_[A-Za-z0-9+/]{32,}={0,2})"),
    Shape("HubSpot token", "pat-na pat-eu", rf"pat-[a-z]{{2}}[0-9]-{UUID}"),
    Shape("Intra42 secret", "s-s4t2", r"s-s4t2(?:ud|af)-[a-f0-9]{64}"),
    Shape("LaunchDarkly key", "sdk- api- mob-", rf"(?:sdk|api|mob)-{UUID}"),
    Shape("Linear key", "lin_api_ lin_oauth_", r"lin_(?:api|oauth)_[A-Za-z0-9]{20,}"),
    Shape("Mapbox token", "sk.eyJ pk.eyJ", r"[ps]k\.eyJ[\w\-]{30,}\.[\w\-]{16,}"),
    Shape("MaxMind key", "_mmk", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk", back=36),
    Shape("New Relic key", "NRAK- NRJS- NRII- NRAA- NRRA-", r"NR[A-Z]{2}-[A-Za-z0-9\-]{19,}"),
    Shape("Notion token", "secret_ ntn_", r"(?:secret_[A-Za-z0-9]{40,}|ntn_[A-Za-z0-9]{30,})"),
    Shape("PostHog key", "phx_ phs_", r"ph[xs]_[A-Za-z0-9]{32,}"),
    Shape("Postman key", "PMAK-", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    Shape("ReadMe key", "rdme_", r"rdme_[a-z0-9]{60,}"),
    Shape("Riot key", "RGAPI-", rf"RGAPI-{UUID}"),
    Shape("Rootly key", "rootly_", r"rootly_[a-f0-9]{60,}"),
    Shape("Sentry token", "sntrys_ sntryu_", r"sntry[su]_[A-Za-z0-9+/=_\-]{40,}"),
    Shape("Sentry DSN", "://", r"://([0-9a-f]{32})(?::[0-9a-f]{32})?@", back=1),
    Shape("SettleMint token", "sm_aat_ sm_pat_ sm_sat_", r"sm_[aps]at_[A-Za-z0-9]{16}"),
    Shape("Twitter bearer token", "AAAAAAAAAAAAAAAAAAAA", r"A{20,22}[A-Za-z0-9%]{60,}"),
    Shape("Typeform token", "tfp_", r"tfp_[\w.=\-]{40,}"),
    Shape("Ubidots token", "BBFF-", r"BBFF-[0-9a-zA-Z]{30}"),
    # Forms that any service uses
    Shape(
        "private key in base64",
        "LS0tLS1CRUdJTiB",
        r"LS0tLS1CRUdJTiB(?:SU0Eg|QUklW|FQyBQ|PUEVO|FTkNS)[A-Za-z0-9+/]{8,}={0,2}",
    ),
    Shape("JSON web token", "eyJ", r"eyJ[\w\-]{8,512}\.(?:eyJ)?[\w\-]{8,}"),
    Shape(
        "password hash",
        "$2a$ $2b$ $2y$ $6$ $5$ $1$ $apr1$ $argon2",
        r"\$(?:2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{40,}|(?:1|5|6|apr1)\$(?:rounds=[0-9]+\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{20,}|argon2[id]{1,2}\$[\w=,$+/.\-]{30,})",
        back=1,
    ),
    Shape(
        "LDAP password hash",
        "{SSHA} {SSHA256} {SSHA512} {SHA} {SMD5}",
        r"\{S(?:SHA(?:256|512)?|HA|MD5)\}[A-Za-z0-9+/]{20,}={0,2}",
        back=1,
    ),
)
"""Shapes by service. Where two have one anchor, both are tried."""
TOKEN_END = compile_bytes(r"[\w+/=~%\-]*(?:\.[\w+/=~%\-]+)*")
"""The rest of a token whose first characters fit a shape."""


WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


class ShapeFinder:
    """Finds secrets of all shapes."""

    def __init__(self) -> None:
        shapes = [(anchor, shape.back, compile_bytes(shape.pattern)) for shape in SHAPES for anchor in shape.anchors.split()]
        # The longest first, since an alternation takes the first that fits; an anchor also covers its own prefixes.
        anchors = sorted({anchor for anchor, _, _ in shapes}, key=len, reverse=True)
        self._by_anchor = {
            long.encode(): tuple((back, pattern) for short, back, pattern in shapes if long.startswith(short)) for long in anchors
        }
        self._anchors = compile_bytes("|".join(map(re2.escape, anchors)))

    def spans(self, data: bytes) -> Iterator[Span]:
        """Yield the spans of secrets, in bytes, in ascending order."""
        covered = 0
        for hit in self._anchors.finditer(data):
            at = hit.start()
            if at >= covered and (span := self._secret(data, at, hit.group(), covered)):
                covered = span[1]
                yield span

    def _secret(self, data: bytes, at: int, anchor: bytes, covered: int) -> Span | None:
        within = at > 0 and data[at - 1] in WORD
        for back, pattern in self._by_anchor[anchor]:
            if back:
                match = pattern.search(data, max(covered, at - back), at + REACH)
                match = match if match and match.start() <= at else None
            else:
                match = None if within else pattern.match(data, at, at + REACH)
            if match:
                start, end = match.span(1 if match.re.groups else 0)
                return start, TOKEN_END.match(data, end).end()
        return None
