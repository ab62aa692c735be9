exec(open('/tmp/px/w/e1.py').read().split("sub('sdk")[0])
sub('protos/phalanx_proto/v1/control.proto',('''  // A link to the page that signs its opener in once, within five minutes.
  // What webhooks of the caller's workspace are signed with.
  rpc GetWebhookSecret(WebhookSecretRequest) returns (WebhookSecret);
''','''  // What webhooks of the caller's workspace are signed with.
  rpc GetWebhookSecret(WebhookSecretRequest) returns (WebhookSecret);
  // A link to the page that signs its opener in once, within five minutes.
'''),('''message LoginLink {''','''message WebhookSecretRequest {
  bool rotate = 1;
}
message WebhookSecret {
  string secret = 1;
  int64 version = 2;
  int64 rotated_ms = 3;
}
message LoginLink {'''))
sub('protos/phalanx_proto/v1/common.proto',('''  bool fresh = 12;
''','''  bool fresh = 12;
  string webhook = 13;
'''))
sub('sdk/phalanx/map_call.py',('''        self._raw = new_raw_id()
        self._taken''','''        self._raw = new_raw_id()
        if target.terms.webhook:
            self._item_target = replace(target, terms=replace(target.terms, map_id=id_text("m", self._raw)))
        self._taken'''),('''        self._target = target
        self._inputs = inputs
        self._runner''','''        self._target = self._item_target = target
        self._inputs = inputs
        self._runner'''))
sub('sdk/phalanx/client.py',('''    TokenInfo,
)''','''    TokenInfo,
    WebhookSecret,
)'''))
