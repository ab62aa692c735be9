def sub(p,*pairs):
    s=open(p).read()
    for a,b in pairs:
        assert a in s,(p,a)
        s=s.replace(a,b,1)
    open(p,'w').write(s)
sub('sdk/phalanx/core/spec.py',('''    fresh: bool = False
    """Each call gets a gang of its own, which ends with it."""
''','''    fresh: bool = False
    """Each call gets a gang of its own, which ends with it."""
    webhook: str = ""
    """Who is told of the end of each call."""
'''),('''for name in ("streams", "fresh"):''','''for name in ("streams", "fresh", "webhook"):'''),('''        if self.app:
            check_name("app name", self.app)
''','''        if self.app:
            check_name("app name", self.app)
        if self.webhook:
            check_url(self.webhook)
'''))
s=open('sdk/phalanx/core/spec.py').read()
import re
s=s.replace("from phalanx.core.errors import InvalidSpecError\n","from phalanx.core.errors import InvalidSpecError\nfrom phalanx.core.webhooks import check_url\n",1)
open('sdk/phalanx/core/spec.py','w').write(s)
sub('sdk/phalanx/options.py',('''    name: str | None = None


def spec_for''','''    name: str | None = None
    webhook: str | None = None


def spec_for'''),('''        fresh=not _flag("reuse", options.reuse),
''','''        fresh=not _flag("reuse", options.reuse),
        webhook=webhook_url(options.webhook),
'''),('''def _number(what''','''def webhook_url(value: object) -> str:
    """Returns the address; "" for None. Raises InvalidSpecError for what no webhook can go to."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidSpecError(f"webhook={value!r:.80}: give an address such as 'https://example.com/hooks/phalanx'")
    check_url(value)
    return value


def _number(what'''),('''from phalanx.durations import''','''from phalanx.core.webhooks import check_url
from phalanx.durations import'''))
sub('sdk/phalanx/overrides.py',('''    idempotency_key: str
    gpus''','''    idempotency_key: str
    webhook: str
    gpus'''),('''"deadline", "idempotency_key")''','''"deadline", "idempotency_key", "webhook")'''),('''    key: str = ""

    def of''','''    key: str = ""
    webhook: str = ""

    def of'''),('''            idempotency_key=self.key,
''','''            idempotency_key=self.key,
            webhook=self.webhook or target.terms.webhook,
'''),('''        out["key"] = _key(given["idempotency_key"])
''','''        out["key"] = _key(given["idempotency_key"])
    if "webhook" in given:
        out["webhook"] = webhook_url(given["webhook"])
'''),('''from phalanx.options import check_names
''','''from phalanx.options import check_names, webhook_url
'''),('''What the same gang can do (timeout, retries, deadline, key) travels''','''What the same gang can do (timeout, retries, deadline, key, webhook) travels'''))
sub('sdk/phalanx/definition.py',('''        limits.retries == 0 and not spec.fresh,
        retries''','''        limits.retries == 0 and not spec.fresh and not spec.webhook,
        terms=CallTerms(webhook=spec.webhook) if spec.webhook else _NO_TERMS,
        retries'''),('''because it counts retries or gives each call a gang of its own, or
    for terms''','''because it counts retries, gives each call a gang of its own or
    tells somebody of its end, or for terms'''))
sub('sdk/phalanx/function.py',('''    name: str | None = None,
    app: App | None = None,
    **unknown''','''    name: str | None = None,
    webhook: str | None = None,
    app: App | None = None,
    **unknown'''),('''        name=name,
    )
    if func''','''        name=name,
        webhook=webhook,
    )
    if func'''),('''    env: made with `phalanx.env`. name: instead of the function's own. app: collects it for `gpuctl deploy`.
''','''    env: made with `phalanx.env`. name: instead of the function's own. app: collects it for `gpuctl deploy`.
    webhook: the address that is told when a call has ended, signed: see `phalanx.webhooks.verify`. Such calls go through
    the control plane.
'''))
sub('sdk/phalanx/core/messages.py',('''    deadline_wall_ms: int = 0
    idempotency_key: str = ""
''','''    deadline_wall_ms: int = 0
    idempotency_key: str = ""
    webhook: str = ""
    """Who is told of its end, instead of whom its function names."""
    map_id: str = ""
    """What it is a part of, for whom the webhook tells."""
'''))
sub('sdk/phalanx/core/views.py',('''    deadline_ms: int = 0
    idempotency_key: str = ""
''','''    deadline_ms: int = 0
    idempotency_key: str = ""
    webhook: str = ""
    """Whom its end is told, and how far that has come; empty: nobody."""
'''),('''@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:''','''@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSecret:
    """What a workspace's webhooks are signed with. ``rotated_ms``: since when; until a day later the former one signs
    beside it. ``version`` counts the rotations."""

    secret: str = ""
    version: int = 0
    rotated_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:'''))
sub('sdk/phalanx/map_call.py',('''    def _submit(self, item: tuple[int, Packed]) -> None:
        self._runner.submit(self._target, raw''','''    def _submit(self, item: tuple[int, Packed]) -> None:
        self._runner.submit(self._item_target, raw'''))
sub('sdk/phalanx/client.py',('''    def login_link(self)''','''    def webhook_secret(self, *, rotate: bool = False) -> WebhookSecret:
        """Returns what webhooks of the caller's workspace are signed with; with ``rotate`` a new one."""
        request = control_pb2.WebhookSecretRequest(rotate=rotate)
        return wire.from_proto(WebhookSecret, self._unary("GetWebhookSecret", request))

    def login_link(self)'''))
sub('protos/phalanx_proto/v1/common.proto',('''  string idempotency_key = 6;
}''','''  string idempotency_key = 6;
  string webhook = 7;
  string map_id = 8;
}'''))
sub('protos/phalanx_proto/v1/control.proto',('''  string idempotency_key = 34;
''','''  string idempotency_key = 34;
  string webhook = 35;
'''),('''  rpc CreateLoginLink(''','''  // What webhooks of the caller's workspace are signed with.
  rpc GetWebhookSecret(WebhookSecretRequest) returns (WebhookSecret);
  rpc CreateLoginLink('''))
