"""Made-up secrets of every kind that redaction knows, in every form of file in which they can stand.

Values are drawn when they are needed, from templates: `{a36}` stands for 36 characters of the alphabet `a`. So no scanner of this
repository finds a secret, and none is a copy of redaction's own patterns.
"""

import base64
import json
import random
import re
import string
from collections.abc import Callable, Mapping

ALPHABETS = {
    "d": string.digits,
    "l": string.ascii_lowercase,
    "x": "0123456789abcdef",
    "a": string.ascii_letters + string.digits,
    "b": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + string.digits,
    "w": string.ascii_letters + string.digits + "_-",
    "s": string.ascii_letters + string.digits + "+/",
}
UUID = "{x8}-{x4}-{x4}-{x4}-{x12}"
BY_SHAPE = {
    "AWS access key": "AKIA{U16}",
    "AWS temporary key": "ASIA{U16}",
    "AWS Bedrock key": "ABSK{s80}",
    "AWS MWS key": f"amzn.mws.{UUID}",
    "Google API key": "AIza{w35}",
    "Google OAuth secret": "GOCSPX-{w28}",
    "Google OAuth token": "ya29.{w60}",
    "Google refresh token": "1//0{w60}",
    "Azure client secret": "{a3}8Q~{w34}",
    "Azure storage key": "AccountKey={s86}==",
    "Azure SAS": "https://x.blob.core.windows.net/c?sv=2024-01-01&sig={s43}%3D",
    "Azure function key": "https://x.azurewebsites.net/api/f?code={w54}==",
    "Alibaba access key": "LTAI{a20}",
    "Tencent secret id": "AKID{a32}",
    "Yandex key": "AQVN{w36}",
    "DigitalOcean token": "dop_v1_{x64}",
    "Databricks token": "dapi{x32}",
    "Heroku key": "HRKU-AA{w58}",
    "Cloudflare origin key": "v1.0-{x24}-{x146}",
    "Fly.io token": "fo1_{w43}",
    "Scalingo token": "tk-us-{w48}",
    "PlanetScale token": "pscale_tkn_{w43}",
    "Neon key": "napi_{b64}",
    "Supabase token": "sbp_{x40}",
    "Supabase secret key": "sb_secret_{w31}",
    "Deno Deploy token": "ddp_{a36}",
    "GitHub token": "ghp_{a36}",
    "GitHub OAuth token": "gho_{a36}",
    "GitHub app token": "ghs_{a36}",
    "GitHub fine-grained token": "github_pat_{a22}_{a59}",
    "GitLab token": "glpat-{w20}",
    "GitLab deploy token": "gldt-{w20}",
    "GitLab runner token": "glrt-{w20}",
    "Bitbucket password": "ATBB{a32}",
    "Atlassian token": "ATATT3{w186}",
    "npm token": "npm_{a36}",
    "PyPI token": "pypi-AgEIcHlwaS5vcmc{w120}",
    "RubyGems key": "rubygems_{x48}",
    "NuGet key": "oy2{b43}",
    "Clojars token": "CLOJARS_{b60}",
    "Docker token": "dckr_pat_{w27}",
    "Artifactory key": "AKCp{a69}",
    "Sourcegraph token": "sgp_{x40}",
    "SonarQube token": "squ_{x40}",
    "CircleCI token": "CCIPAT_{a22}_{x40}",
    "Buildkite token": "bkua_{x40}",
    "Octopus Deploy key": "API-{U26}",
    "Pulumi token": "pul-{x40}",
    "Terraform Cloud token": "{a14}.atlasv1.{w67}",
    "Vault token": "hvs.{w90}",
    "Doppler token": "dp.pt.{a43}",
    "Infracost key": "ico-{a32}",
    "OpenShift token": "sha256~{w43}",
    "Prefect key": "pnu_{b36}",
    "Harness token": "pat.{w22}.{x24}.{a20}",
    "1Password token": "ops_eyJ{s250}",
    "age secret key": "AGE-SECRET-KEY-1{U58}",
    "Tailscale key": "tskey-auth-{a12}CNTRL-{a32}",
    "OpenAI key": "sk-proj-{w74}T3BlbkFJ{w74}",
    "OpenAI legacy key": "sk-{a20}T3BlbkFJ{a20}",
    "Anthropic key": "sk-ant-api03-{w93}AA",
    "OpenRouter key": "sk-or-v1-{x64}",
    "Hugging Face token": "hf_{a34}",
    "Groq key": "gsk_{a52}",
    "Replicate token": "r8_{a37}",
    "Perplexity key": "pplx-{a48}",
    "xAI key": "xai-{a80}",
    "LangSmith key": "lsv2_pt_{x32}_{x10}",
    "Pinecone key": "pcsk_{a6}_{a60}",
    "Tavily key": "tvly-{a32}",
    "NVIDIA key": "nvapi-{w64}",
    "Slack bot token": "xoxb-{d12}-{d12}-{a24}",
    "Slack user token": "xoxp-{d12}-{d12}-{x32}",
    "Slack app token": "xapp-1-A{U10}-{d13}-{x64}",
    "Slack webhook": "https://hooks.slack.com/services/T{U8}/B{U10}/{a24}",
    "Discord token": "MT{a22}.G{a5}.{w38}",
    "Discord webhook": "https://discord.com/api/webhooks/{d18}/{w68}",
    "Telegram bot token": "{d10}:AA{w33}",
    "Teams webhook": f"https://x.webhook.office.com/webhookb2/{UUID}@{UUID}/IncomingWebhook/{{x32}}/{UUID}",
    "SendGrid key": "SG.{w22}.{w43}",
    "Twilio key": "SK{x32}",
    "Mailgun key": "key-{x32}",
    "Mailchimp key": "{x32}-us12",
    "Brevo key": "xkeysib-{x64}-{a16}",
    "Resend key": "re_{a8}_{a24}",
    "Stripe key": "sk_live_{a24}",
    "Stripe restricted key": "rk_test_{a24}",
    "Stripe webhook secret": "whsec_{a32}",
    "Square token": "sq0atp-{w22}",
    "Facebook token": "EAA{a120}",
    "Shopify token": "shpat_{x32}",
    "Shippo token": "shippo_live_{x40}",
    "Flutterwave key": "FLWSECK-{x32}-X",
    "EasyPost key": "EZAK{a54}",
    "Duffel token": "duffel_live_{w43}",
    "Braintree token": "access_token$production${b16}${x32}",
    "Plaid token": f"access-sandbox-{UUID}",
    "Airtable token": "pat{a14}.{x64}",
    "Asana token": "1/{d16}:{x32}",
    "Contentful token": "CFPAT-{w43}",
    "Dropbox token": "sl.{w130}",
    "Dynatrace token": "dt0c01.{U24}.{U64}",
    "Figma token": "figd_{w40}",
    "Frame.io token": "fio-u-{w64}",
    "Grafana token": "glsa_{a32}_{x8}",
    "HubSpot token": f"pat-na1-{UUID}",
    "LaunchDarkly key": f"sdk-{UUID}",
    "Linear key": "lin_api_{a40}",
    "Mapbox token": "sk.eyJ{a84}.{a22}",
    "MaxMind key": "{a6}_{a29}_mmk",
    "New Relic key": "NRAK-{U27}",
    "Notion token": "ntn_{a46}",
    "PostHog key": "phx_{a43}",
    "Postman key": "PMAK-{x24}-{x34}",
    "ReadMe key": "rdme_{b70}",
    "Riot key": f"RGAPI-{UUID}",
    "Sentry token": "sntryu_{x64}",
    "Sentry DSN": "https://{x32}:{x32}@o1.ingest.sentry.io/2",
    "Typeform token": "tfp_{w44}_{w14}",
    "Ubidots token": "BBFF-{a30}",
    "JSON web token": "eyJ{a33}.eyJ{a60}.{w43}",
    "password hash": "$2b$12${a53}",
    "crypt hash": "$6${a12}${a86}",
    "database address": "postgresql://ada:{a14}@db.internal:5432/x",
    "Redis address": "redis://:{a24}@cache.internal:6379/0",
    "AMQP address": "amqp://worker:{a12}@mq.internal/v",
}
"""Kinds that their own form gives away."""
BY_NAME = {
    "AWS secret key": ("aws_secret_access_key", "{s40}"),
    "Azure client secret by name": ("azure_client_secret", "{a40}"),
    "Azure DevOps token": ("azure_devops_token", "{b52}"),
    "Cloudflare token": ("cloudflare_api_token", "{w40}"),
    "Datadog key": ("datadog_api_key", "{x32}"),
    "Datadog application key": ("dd_app_key", "{x40}"),
    "Algolia key": ("algolia_admin_key", "{x32}"),
    "Fastly token": ("fastly_api_token", "{w32}"),
    "PagerDuty token": ("pagerduty_token", "{w20}"),
    "Okta token": ("okta_api_token", "00{w40}"),
    "Heroku key by name": ("heroku_api_key", UUID),
    "Snyk token": ("snyk_token", UUID),
    "Travis token": ("travis_token", "{a22}"),
    "Codecov token": ("codecov_token", UUID),
    "Netlify token": ("netlify_auth_token", "{w43}"),
    "Vercel token": ("vercel_token", "{a24}"),
    "Rollbar token": ("rollbar_access_token", "{x32}"),
    "Mistral key": ("mistral_api_key", "{a32}"),
    "Cohere key": ("cohere_api_key", "{a40}"),
    "Weights & Biases key": ("wandb_api_key", "{x40}"),
    "Zendesk token": ("zendesk_token", "{a40}"),
    "Twilio auth token": ("twilio_auth_token", "{x32}"),
    "Consumer secret": ("consumer_secret", "{a43}"),
    "Session secret": ("session_secret", "{a32}"),
    "Django secret key": ("secret_key", "django-insecure-{w50}"),
    "JWT secret": ("jwt_secret", "{a32}"),
    "Encryption key": ("encryption_key", "{s43}="),
    "WireGuard key": ("PrivateKey", "{s43}="),
    "Vault token by name": ("vault_token", "s.{a24}"),
    "npm token by name": ("_authToken", UUID),
    "Salt": ("password_salt", "{x24}"),
    "password": ("password", "{a10}!"),
    "password of words": ("db_password", "correct-horse-battery"),
    "plain password": ("password", "sunshine{d2}"),
    "Cloudant password": ("cloudant_password", "{x64}"),
    "IBM Cloud key": ("ibm_cloud_iam_key", "{w44}"),
    "IBM storage key": ("cos_hmac_secret_access_key", "{x48}"),
    "SoftLayer key": ("softlayer_api_key", "{b64}"),
    "passphrase": ("gpg_passphrase", "{a16}"),
}
"""Kinds that only their name gives away: usual name, value."""
LINES = {
    "Bearer header": "Authorization: Bearer {w40}",
    "Basic header": "Authorization: Basic {basic}",
    "X-API-Key header": "X-API-Key: {a32}",
    "GitHub header": "Authorization: token {x40}",
    "connection string": "Server=db;Database=x;User Id=sa;Password={a12};Encrypt=true",
}
"""Kinds that stand in a longer line."""
COMMANDS = {
    "curl user": ("curl -u ada:{a12} https://api.internal/", "{a12}"),
    "mysql password": ("mysql -h db -u root -p{a12} app", "{a12}"),
    "sshpass": ("sshpass -p {a12} ssh ada@host", "{a12}"),
    "password flag": ("deploy --password {a12} --force", "{a12}"),
    "token flag": ("deploy --token {a32}", "{a32}"),
    "netrc": ("machine api.internal login ada password {a12}", "{a12}"),
    "pgpass": ("db.internal:5432:app:ada:{a12}", "{a12}"),
}
"""Kinds of a shell or of a file of their own: line, the secret in it."""
FORMS: Mapping[str, tuple[str, Callable[[str, str], str]]] = {
    "python": ("py", lambda name, value: f'import os\n\n\ndef connect():\n    {name} = "{value}"\n    return open({name})\n'),
    "yaml": ("yaml", lambda name, value: f"service:\n  port: 80\n  {name}: {value}\n  host: db\n"),
    "env": ("env", lambda name, value: f"PORT=80\n{name.upper()}={value}\nHOST=db\n"),
    "json": ("json", lambda name, value: json.dumps({"port": 80, name: value, "host": "db"}, indent=2)),
    "toml": ("toml", lambda name, value: f'[service]\nport = 80\n{name} = "{value}"\nhost = "db"\n'),
    "shell": ("sh", lambda name, value: f"export PORT=80\nexport {name.upper()}='{value}'\nmake run\n"),
}
"""Files by their form: ending, and text of a file with a named value."""
NEUTRAL = "entry"
"""A name that gives nothing away."""


def draw(template: str, rng: random.Random) -> str:
    """Return a made-up value of a template."""
    pair = base64.b64encode(f"ada:{_characters('a', 9, rng)}".encode()).decode()
    text = template.replace("{basic}", pair)
    return re.sub(r"\{([a-zA-Z])(\d+)\}", lambda m: _characters(m[1], int(m[2]), rng), text)


def _characters(alphabet: str, count: int, rng: random.Random) -> str:
    """Return characters with at least one digit and one letter where there are both, as in every real key of that length."""
    letters = ALPHABETS[alphabet]
    while True:
        drawn = "".join(rng.choices(letters, k=count))
        mixed = any(c.isdigit() for c in drawn) and any(c.isalpha() for c in drawn)
        if (mixed or count < 8 or letters == string.digits) and drawn[0] not in "-_" and drawn[-1] not in "-_":
            return drawn


def private_key(rng: random.Random, kind: str = "RSA ") -> str:
    """Return a made-up private key of eight lines."""
    body = "\n".join(_characters("s", 64, rng) for _ in range(6))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----"


def cases(rng: random.Random) -> list[tuple[str, str, str, str, str]]:
    """Return one file for each kind and form: kind, form, ending, text, and the secret in it."""
    made = []
    for form, (ending, write) in FORMS.items():
        for kind, template in BY_SHAPE.items():
            value = draw(template, rng)
            made.append((kind, form, ending, write(NEUTRAL, value), hidden(template, value)))
        for kind, (name, template) in BY_NAME.items():
            value = draw(template, rng)
            made.append((kind, form, ending, write(name, value), value))
        for kind, template in LINES.items():
            value = draw(template, rng)
            made.append((kind, form, ending, write(NEUTRAL, value), hidden(template, value)))
        key = private_key(rng)
        made.append(("private key", form, ending, write(NEUTRAL, key.replace("\n", "\\n")), key.split("\n")[3]))
    for kind, (template, _) in COMMANDS.items():
        value = draw(template, rng)
        made.append((kind, "shell", "sh", f"set -e\n{value}\n", hidden(template, value)))
    return made


def hidden(template: str, value: str) -> str:
    """Return the longest drawn run of a value: no part of it may stay."""
    pattern = re.escape(re.sub(r"\{(?:[a-zA-Z]\d+|basic)\}", "\0", template)).replace("\0", "(.+)")
    pattern = pattern.replace("\\\0", "(.+)")
    match = re.fullmatch(pattern, value)
    assert match, (template, value)
    return max((match[number + 1] for number in range(len(match.groups()))), key=len, default=value)
