"""Every setting of tabloop: frozen, typed, documented; an unknown key is refused."""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, SecretStr, Tag, field_validator


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Store(Section):
    bucket: str = "tabloop"
    """Bucket that holds events, cycles, checkpoints and decisions."""
    endpoint: str | None = "http://127.0.0.1:9000"
    """S3 endpoint; none for AWS itself (in TOML, which has no null: "")."""
    region: str = "us-east-1"
    """Region given to the S3 client."""
    access_key: SecretStr | None = None
    """Access key; none to use boto3's own chain (environment, profile, instance role)."""
    secret_key: SecretStr | None = None
    """Secret key, together with the access key."""

    lock: Path | None = None
    """File that is locked around writes that must happen once, for a server on this machine that does not keep to conditional
    puts (the local one does not). Where there is none, the server has to: that is tried at every start."""

    @field_validator("endpoint", mode="before")
    @classmethod
    def _empty_is_none(cls, value: str | None) -> str | None:
        return value or None


class Registry(Section):
    uri: str = "http://127.0.0.1:5000"
    """MLflow tracking and registry server."""
    page: str = ""
    """Address at which a browser finds MLflow, for links; empty: the one above."""
    model: str = "tabloop"
    """Name of the registered model whose aliases say what is served."""


class Orchestration(Section):
    api: str = "http://127.0.0.1:4200/api"
    """Prefect API."""
    page: str = ""
    """Address at which a browser finds Prefect, for links; empty: the one above, without /api."""
    work_pool: str = "tabloop"
    """Prefect work pool of the deployments."""
    dask_scheduler: str = Field("", pattern=r"^((tcp|tls)://[^/@\s]+:\d+)?$")
    """Address of a Dask scheduler, whose workers join a window's partitions: "tcp://HOST:PORT", "tls://HOST:PORT". Empty: threads
    of the flow's own process do."""


class Model(Section):
    base: Path = Path("infra/base_model")
    """Directory of the base model (Hugging Face layout); relative to the repository."""
    name: str = "qwen-coder-tabloop"
    """Name told to editors; Continue picks Qwen's FIM tokens where it holds "qwen" and "coder"."""
    fim_order: Literal["psm", "spm"] = "psm"
    """Order the model was trained on: prefix-suffix-middle (Qwen) or suffix-prefix-middle."""
    max_prefix_tokens: int = Field(240, ge=8)
    """Tokens before the cursor that are kept, nearest first."""
    max_suffix_tokens: int = Field(80, ge=0)
    """Tokens after the cursor that are kept, nearest first."""


class Sampling(Section):
    temperature: float = Field(1.0, gt=0, le=2)
    """Temperature of every served completion; the client's own is ignored, since a near-greedy policy cannot explore."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus mass; below 1 the recorded log-probabilities are those of the cut distribution, and training refuses them."""
    max_tokens: int = Field(32, ge=1)
    """Most tokens of a completion; a client may ask for fewer."""
    withhold_below: float = Field(0.0, ge=0, lt=1)
    """A completion that the model itself gives a lower probability than this is sampled and recorded but not shown; 0: all are
    shown. Above 0 nothing is streamed before the last token is sampled."""


Role = Literal["complete", "feedback", "admin"]
ProjectName = Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]


class AccessToken(Section):
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the token, in hex; `python -m serving.access NAME` makes a token and its lines here."""
    projects: tuple[ProjectName, ...] = ()
    """Projects that it may name, the first being meant where a request names none; empty: any."""
    roles: tuple[Role, ...] = ("complete", "feedback")
    """What it may do: ask for completions, send feedback, administrate."""
    requests_per_minute: int = Field(600, ge=1)
    """Requests that it may send, evened out over the minute; each replica of the app counts for itself."""


class Terms(Section):
    logged: bool = True
    """Completions and feedback are kept; else they are served without a trace, as with X-Tabloop-Opt-Out."""
    experiments: bool = False
    """Takes part in A/B tests; else the champion serves."""
    version: str = ""
    """Policy version that serves, where a slot holds it (else the champion does); such completions count in no experiment."""


class UserTerms(Terms):
    experiments: bool = True
    """Takes part in A/B tests where the project does; else the champion serves."""


class External(Section):
    """An engine slot that is a server of somebody else's."""

    kind: Literal["external"]
    """Says that nothing is started for this slot."""
    url: str
    """Base URL of its OpenAI-compatible API, up to /v1."""
    model: str
    """Model name that it is asked for."""
    token: SecretStr | None = None
    """Bearer token that it wants."""
    version: str = Field("0", pattern=r"^\d+$")
    """Number in the registry of the version that it was started with; 0: the base model."""
    swap: Literal["none", "vllm"] = "none"
    """How its weights are exchanged. none: it serves that version for good. vllm: by the development endpoints of a vLLM with
    our worker extension, which this replica of the app has for itself (serving/README.md)."""

    @field_validator("url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        address = urlsplit(value)
        if address.scheme not in ("http", "https") or not address.hostname or "@" in address.netloc:
            raise ValueError("expected http://HOST:PORT/v1 or https://..., a token standing in `token`")
        return value.rstrip("/")


def _kind_of_engine(value: object) -> str:
    return "address" if isinstance(value, str) else "external"


Engine = Annotated[Annotated[str, Tag("address")] | Annotated[External, Tag("external")], Discriminator(_kind_of_engine)]


class Serving(Section):
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8081
    """Port of completions."""
    feedback_port: int = 8082
    """Port of feedback."""
    token: SecretStr | None = None
    """Bearer token that clients must send; none: the stack generates one and keeps it in its state directory."""
    admin_token: SecretStr | None = None
    """Token for /admin and for pinning an arm; none: the token above is enough."""
    user_secret: SecretStr | None = None
    """Key of the keyed hash under which user ids are stored; none: generated like the token."""
    tokens: dict[str, AccessToken] = {}
    """More tokens, by name, each with its projects, roles and rate; the two above have every project."""
    requests_per_minute: int = Field(60_000, ge=1)
    """Requests that each of the two tokens above may send, as one of `tokens`; a whole team sends a hundredth of this."""
    terms: Terms = Terms()
    """How projects take part that are not named below."""
    projects: dict[ProjectName, Terms] = {}
    """How a project takes part; nothing of the terms above holds for it."""
    users: dict[str, UserTerms] = {}
    """How a user takes part, by keyed hash (`python -m infra.identity NAME` prints it): logged, and in A/B tests, only where the
    project is too; a version here goes before the project's."""
    sampling: Sampling = Sampling()
    """How completions are sampled."""
    challenger_sampling: Sampling | None = None
    """How the challenger's arm samples; none: as the champion's. An A/B test then compares weights and sampling at once."""
    engines: tuple[Engine, Engine] = ("http://127.0.0.1:18100", "http://127.0.0.1:18101")
    """The two engine slots: the address of an engine of ours, or a table that names a server which already runs."""
    engine_arguments: dict[str, Any] = {}
    """Arguments of vLLM's engines, passed through verbatim (names as in vLLM's AsyncEngineArgs)."""
    spool: Path = Path("var/spool")
    """Directory of events that were not shipped yet."""
    spool_bytes: int = Field(1 << 30, ge=1 << 20)
    """Most bytes that wait in the spool; beyond it feedback is refused with 503, and completions are served unrecorded."""
    ship_seconds: float = Field(5.0, gt=0)
    """Age at which a spool segment is closed and shipped to the object store."""
    follow_seconds: float = Field(2.0, gt=0)
    """How often the registry's aliases are read."""
    state: Path = Path("var/serving")
    """Directory of downloaded versions and the last known assignment."""


class Collect(Section):
    settle_seconds: float = Field(30.0, ge=0)
    """A completion younger than this may still get a label, and waits."""
    join_seconds: float = Field(600.0, gt=0)
    """Longest time between a completion and its feedback."""
    window_seconds: float = Field(7 * 86_400.0, gt=0)
    """Requests older than this are not looked at any more."""
    max_staleness: int = Field(2, ge=0)
    """Most updates between the policy that sampled a completion and the version that is trained, counted along parents."""
    min_samples: int = Field(256, ge=1)
    """Fewest samples that are worth a cycle."""
    max_samples: int = Field(4096, ge=1)
    """Most samples of a cycle, newest first."""
    max_user_share: float = Field(0.2, gt=0, le=1)
    """Largest share of a cycle's samples from one user; with fewer users than that allows, all get the same share."""
    max_quarantined: float = Field(0.2, ge=0, le=1)
    """Largest share of labelled samples that may fail validation before the whole cycle stops."""
    max_project_share: float = Field(1.0, gt=0, le=1)
    """Largest share of a cycle's samples from one project before the cycle stops; with fewer projects than that allows, an equal
    share is no reason. 1: a team's only project is fine."""
    max_user_weight: float = Field(0.2, gt=0, le=1)
    """Largest share of a cycle's weight (the sum of the advantages' sizes) that one user's samples may have; what is above it is
    scaled down. With fewer users than that allows, all may have the same."""
    max_duplicates: float = Field(0.1, ge=0, le=1)
    """Largest share of a window's requests that were delivered again before the cycle stops: something ships twice."""
    max_unknown_versions: float = Field(0.05, ge=0, le=1)
    """Largest share of a window's requests by versions that the registry does not know before the cycle stops; they are never
    trained on."""
    max_clock_skew_seconds: float = Field(60.0, ge=0)
    """Most that an event's time may lie ahead of the collector's clock before the cycle stops: windows are cut by time."""
    history_cycles: int = Field(10, ge=0)
    """Cycles that a batch's acceptance rate and shown length are held against; 0: none."""
    max_history_factor: float = Field(4.0, gt=1)
    """Most times that the acceptance rate or the shown length may be above or below the earlier cycles' before the cycle stops,
    where the difference is no chance (five standard errors)."""


class Reward(Section):
    accepted: float = 0.75
    """Reward of an accepted completion, before its length is counted. Accepted or retained in part, it earns that share of this
    and the rest of `rejected`."""
    per_character: float = 0.0
    """Added for each accepted character up to max_characters."""
    max_characters: int = 80
    """Accepted characters beyond this add nothing."""
    rejected: float = -0.25
    """Reward of a completion that was shown and not accepted."""
    nothing: float = 0.0
    """Reward of a completion with nothing to show."""
    estimator: Literal["return", "group"] = "return"
    """Advantages: return takes all of a cycle's samples together; group (GRPO) takes those of one prompt, and needs several
    completions of each (`python -m tasks.groups` makes them): a loop with one completion a prompt has nothing to compare."""
    baseline: Literal["none", "mean", "running"] = "mean"
    """What the estimator return subtracts. none: nothing, so that the reward's sign is the direction and rejections alone teach
    too. mean: the batch's mean. running: the mean of the last collect.history_cycles cycles with these reward settings, the
    batch's own where there are none; a batch that is worse than usual is then pushed down as a whole."""
    normalise: bool = True
    """Divide by the standard deviation of the batch's rewards, where they differ."""
    baseline_by_length: float = Field(0.0, ge=0, le=1)
    """Share of the baseline that is the mean of completions of like length (tokens, in powers of two), the rest being the mean of
    all. Short completions are accepted more often: at 0 a model may win by showing less, at 1 it learns nothing about how much to
    show."""
    baseline_by_language: bool = False
    """Take the baseline's means within each language, as clients tell it by the file's ending or the language's name; languages
    with less than 50 samples, and code of which no client tells it, together. Where one language is completed better than
    another, its completions are otherwise all pushed up, and the other's down."""
    length_exponent: float = Field(0.0, ge=0, le=1)
    """A completion's weight falls with this power of its tokens: at 0 every token counts the same, at 1 every completion."""


def _none_or_above_one(bound: float) -> float:
    if 0 < bound <= 1:
        raise ValueError("expected 0, for none, or a bound above 1 (3 is usual): one of at most 1 holds tokens that did not move")
    return bound


DualClip = Annotated[float, Field(ge=0), AfterValidator(_none_or_above_one)]


class Train(Section):
    processes: int = Field(1, ge=1)
    """Processes (torchrun's nproc_per_node)."""
    tensor_parallel: int = Field(1, ge=1)
    """Megatron tensor-parallel size."""
    pipeline_parallel: int = Field(1, ge=1)
    """Megatron pipeline-parallel size."""
    precision: Literal["float32", "bfloat16", "fastest"] = "float32"
    """What the products are computed in, float32 masters beside it; fastest: bfloat16 on GPUs and on CPUs that are
    faster in it (those with AMX, and AMD's with AVX512-BF16)."""
    learning_rate: float = Field(2e-6, gt=0)
    """Peak learning rate."""
    epochs: int = Field(2, ge=1)
    """Passes over a cycle's samples."""
    minibatch: int = Field(256, ge=1)
    """Samples of one optimizer step."""
    micro_batch_tokens: int = Field(8192, ge=64)
    """Token budget of a micro-batch."""
    proximal: Literal["update", "step"] = "update"
    """Weights that the clip holds the policy near, for samples whose proximal policy is recomputed: those at the update's start,
    which costs a forward pass over these samples, or those at each step's start, which the step finds by itself."""
    recomputed: Literal["older", "all"] = "older"
    """Samples whose proximal policy is recomputed, the importance weight making up for the difference: those of older versions,
    or all. The others are held near what the server recorded, as if trainer and server agreed to the bit; where they do not
    (bfloat16, another implementation), all has the weight correct that, too."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """PPO clips the ratio below 1 - clip_low."""
    clip_high: float = Field(0.2, gt=0)
    """PPO clips the ratio above 1 + clip_high."""
    dual_clip: DualClip = 0.0
    """A rejected token's objective is not below this times its advantage, however much likelier the token has become since it was
    sampled; above 1 (3 in Ye et al. 2020), or 0 for no such bound."""
    importance_bound: float = Field(2.0, gt=1)
    """Bound of the importance weight from the behaviour policy, as the server recorded it, to the proximal one."""
    kl_weight: float = Field(0.0, ge=0)
    """Weight of the estimated KL divergence from the reference policy at a sampled token; 0: none."""
    kl_reference: Literal["start", "champion"] = "start"
    """Policy that this divergence is taken to: the weights that the update starts from, or the champion's."""
    entropy_weight: float = Field(0.0, ge=0)
    """Weight of the entropy at a sampled token, which the update then raises; 0: none."""
    max_kl: float = Field(0.0, ge=0)
    """The update ends before a step whose samples show a larger divergence, in nats a token, from the policy that they are held
    near, or from the one that sampled them where each step takes its own proximal policy; 0: it never does."""
    max_ratio: float = Field(1000.0, gt=1)
    """A step is refused where a token has become likelier than this many times under the same policies."""
    max_logprob_gap: float = Field(0.1, gt=0)
    """An update is refused where the trainer's and the server's log-probabilities, of the same tokens under the same weights,
    differ by more than this on average, in nats. It is measured before the first step, on up to 64 samples of that version."""
    max_logprob_gap_p99: float = Field(0.5, gt=0)
    """It is refused, too, where one token in a hundred differs by more than this: a mean hides a few that are far off."""
    context_weight: float = Field(0.0, ge=0)
    """Weight of the language-model loss of a prompt token, beside 1 for the surrogate of a sampled one; 0: none."""
    context_tokens: int = Field(32, ge=1)
    """Prompt tokens of each sample that the language-model loss is taken on."""
    logit_scale_rate: float = Field(0.0, ge=0)
    """Learning rate of the logarithm of the logits' scale, which says how sure the model is, in plain gradient steps; 0: none."""
    frozen_layers: int = Field(0, ge=0)
    """Lowest layers that an update leaves as they are, the embeddings with them; 0: everything is trained."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradient clipping."""
    keep_optimizer: bool = False
    """Keep Adam's moments, twice the size of the weights, in the object store with each candidate; an update then goes on from
    those of the version that it trains further. Off: every update starts them from nothing."""
    seed: int = 0
    """Seed of the order of samples."""
    environment: dict[str, str] = {}
    """Environment variables of the trainer's processes."""
    folder: Path = Path("var/cycles")
    """Directory of the working files of cycles: samples, logs, checkpoints until they are registered."""


class Judge(Section):
    kind: Literal["reference", "openai"] = "reference"
    """reference: similarity to what was really written; openai: an LLM behind an OpenAI-compatible endpoint."""
    url: str = ""
    """Base URL of the endpoint, up to /v1."""
    model: str = ""
    """Model name sent to the endpoint."""
    api_key: SecretStr | None = None
    """Bearer token of the endpoint."""
    timeout_seconds: float = Field(30.0, gt=0)
    """Deadline of one judgement."""


class Evaluate(Section):
    samples: int = Field(400, ge=10)
    """Held-out positions a candidate is scored on."""
    seed: int = 1
    """Seed of the choice of positions."""
    max_drop: float = Field(0.05, ge=0)
    """Largest drop of the judge's mean score (0 to 1 of its scale) against the champion before a candidate is refused."""
    min_length: float = Field(0.5, ge=0)
    """Least mean length of a candidate's completions, as a multiple of the champion's."""
    max_empty_rise: float = Field(0.15, ge=0)
    """Largest rise of the share of positions with nothing to show, against the champion."""
    max_judge_failures: float = Field(0.1, ge=0, le=1)
    """Largest share of positions that the judge may fail on before the evaluation counts as broken."""
    judge: Judge = Judge()
    """Who scores."""


class Experiment(Section):
    share: float = Field(0.5, gt=0, lt=1)
    """Share of users that get the challenger."""
    alpha: float = Field(0.05, gt=0, lt=0.5)
    """Error level of the test, looks before its end included (two-sided; a promotion is wrong half as often)."""
    min_requests: int = Field(500, ge=1)
    """Fewest requests an arm before a verdict."""
    planned_requests: int = Field(20_000, ge=1)
    """Requests an arm at which the test ends: the challenger is promoted or rejected. Before that only a large difference is
    acted on. For a true difference d of acceptance per request near p, 14 p (1 - p) / d^2 find it in three cases of four."""
    max_characters: int = Field(80, ge=1)
    """Accepted characters of one completion beyond this do not count in the test: a few very long accepts would decide it."""
    min_users: int = Field(10, ge=2)
    """Fewest users an arm before a verdict: they are the unit of the test."""
    baseline_seconds: float = Field(86_400.0, ge=0)
    """How long before the experiment a user's own acceptance is looked up, to take the differences between users out."""
    max_seconds: float = Field(86_400.0, gt=0)
    """An experiment without a verdict by then ends in a rejection of the challenger."""
    srm_alpha: float = Field(0.001, gt=0, lt=1)
    """Level of the sample-ratio-mismatch test; a broken split gives no verdict."""


class Retention(Section):
    events_days: float = Field(90.0, gt=0)
    """Days that events are kept; more than collect.window_seconds, since cycles look back so far."""
    cycles_days: float = Field(180.0, gt=0)
    """Days that the rows of a finished cycle are kept: samples, quarantined rows, Data Docs. Its manifest and outcome stay."""
    checkpoints_days: float = Field(30.0, gt=0)
    """Days that the checkpoint of a finished cycle is kept, from its manifest on; one that may still be wanted (tasks/disused.py)
    stays however old it is."""
    optimizers_days: float = Field(3.0, gt=0)
    """Days that the optimizer's state of a finished cycle is kept (train.keep_optimizer), but no longer than its checkpoint; that
    of a version that may still be trained stays however old it is."""
    champions_kept: int = Field(3, ge=0)
    """Champions before the present one whose checkpoints stay however old they are: so far back can be rolled by hand."""
    compact_after_seconds: float = Field(7200.0, ge=0)
    """Age of an hour of events at which its small objects are put together."""
    compact_least: int = Field(8, ge=2)
    """Fewest objects of an hour that are worth it."""
    compact_bytes: int = Field(64 << 20, ge=1)
    """Most bytes that go into one object; an object with more than a quarter of it is not small and is left as it is."""


class Stack(Section):
    state: Path = Path("var/stack")
    """Directory of the local stack: logs, databases, secrets, process manager."""
    ready_seconds: float = Field(300.0, gt=0)
    """Longest time a part may take to come up."""


class Settings(Section):
    """The whole of tabloop's settings."""

    store: Store = Store()
    """Object store."""
    registry: Registry = Registry()
    """Model registry."""
    orchestration: Orchestration = Orchestration()
    """Prefect."""
    model: Model = Model()
    """The base model and its prompt format."""
    serving: Serving = Serving()
    """The serving app and its engines."""
    collect: Collect = Collect()
    """Joining labels to completions."""
    reward: Reward = Reward()
    """Rewards."""
    train: Train = Train()
    """PPO."""
    evaluate: Evaluate = Evaluate()
    """Held-out evaluation."""
    experiment: Experiment = Experiment()
    """A/B tests."""
    retention: Retention = Retention()
    """How long data are kept, and how."""
    stack: Stack = Stack()
    """The local stack."""
