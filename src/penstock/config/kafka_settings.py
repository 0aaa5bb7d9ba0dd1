"""Kafka broker settings that this broker does not have: those that only warn, and those that stop the start.

A configuration that was written for Kafka should start a broker here. Most of its settings beyond the
declared ones tune parts that this broker does not have; ignoring them does no harm, and causes a warning. But
where a setting protects something, a broker that started without the protection would be worse than one that
does not start.

A name in neither list is no setting of Kafka and most likely misspelt. It stops the start too
(`sources`), because otherwise its lack of effect would go unnoticed.
"""

from penstock.config.broker_settings import listener_and_setting

_WITHOUT_EFFECT = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
background.threads broker.heartbeat.interval.ms broker.session.timeout.ms
connection.failed.authentication.delay.ms connections.max.reauth.ms controlled.shutdown.enable
controller.listener.names controller.quorum.append.linger.ms controller.quorum.auto.join.enable
controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
controller.quorum.election.timeout.ms controller.quorum.fetch.timeout.ms
controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
controller.quota.window.num controller.quota.window.size.seconds controller.socket.timeout.ms
delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
delegation.token.max.lifetime.ms delegation.token.secret.key
delete.records.purgatory.purge.interval.requests early.start.listeners
fetch.purgatory.purge.interval.requests group.coordinator.append.linger.ms
group.coordinator.rebalance.protocols group.coordinator.threads group.share.assignors
group.share.delivery.count.limit group.share.heartbeat.interval.ms
group.share.max.heartbeat.interval.ms group.share.max.record.lock.duration.ms
group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
group.share.min.heartbeat.interval.ms group.share.min.record.lock.duration.ms
group.share.min.session.timeout.ms group.share.partition.max.record.locks
group.share.record.lock.duration.ms group.share.session.timeout.ms
group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
group.streams.max.standby.replicas group.streams.min.heartbeat.interval.ms
group.streams.min.session.timeout.ms group.streams.num.standby.replicas
group.streams.session.timeout.ms initial.broker.registration.timeout.ms
kafka.metrics.polling.interval.secs kafka.metrics.reporters leader.imbalance.check.interval.seconds
log.dir.failure.timeout.ms log.flush.offset.checkpoint.interval.ms
log.flush.start.offset.checkpoint.interval.ms log.local.retention.bytes log.local.retention.ms
max.request.partition.size.limit metadata.log.dir metadata.log.max.record.bytes.between.snapshots
metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.ms
metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms num.io.threads
num.network.threads num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads
num.replica.fetchers offsets.commit.timeout.ms offsets.load.buffer.size
offsets.topic.compression.codec offsets.topic.replication.factor process.roles
producer.purgatory.purge.interval.requests queued.max.requests quota.window.num
quota.window.size.seconds replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes
replica.fetch.response.max.bytes replica.fetch.wait.max.ms
replica.high.watermark.checkpoint.interval.ms replica.socket.receive.buffer.bytes
replica.socket.timeout.ms replication.quota.window.num replication.quota.window.size.seconds
request.timeout.ms sasl.client.callback.handler.class sasl.enabled.mechanisms sasl.jaas.config
sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism.controller.protocol sasl.mechanism.inter.broker.protocol
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class sasl.server.max.receive.size
share.coordinator.append.linger.ms share.coordinator.load.buffer.size
share.coordinator.snapshot.update.records.per.snapshot
share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
share.coordinator.state.topic.num.partitions share.coordinator.state.topic.replication.factor
share.coordinator.state.topic.segment.bytes share.coordinator.threads
share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms socket.listen.backlog.size
socket.receive.buffer.bytes socket.send.buffer.bytes ssl.allow.dn.changes ssl.allow.san.changes
ssl.endpoint.identification.algorithm ssl.keymanager.algorithm ssl.keystore.certificate.chain
ssl.keystore.key ssl.keystore.password ssl.principal.mapping.rules ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.password telemetry.max.bytes
transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
transaction.partition.verification.enable transaction.remove.expired.transaction.cleanup.interval.ms
transaction.state.log.load.buffer.size transaction.state.log.min.isr
transaction.state.log.num.partitions transaction.state.log.replication.factor
transaction.state.log.segment.bytes transaction.two.phase.commit.enable
transactional.id.expiration.ms
"""
_OF_OLDER_RELEASES = """
auto.include.jmx.reporter broker.id.generation.enable control.plane.listener.name
controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms
log.message.downconversion.enable log.message.format.version log.message.timestamp.difference.max.ms
reserved.broker.max.id
"""
OF_KAFKA_4_2 = frozenset(_WITHOUT_EFFECT.split())
WITHOUT_EFFECT = OF_KAFKA_4_2.union(_OF_OLDER_RELEASES.split())
_PREFIXES_WITHOUT_EFFECT = ("password.encoder.", "remote.", "zookeeper.")

REPLACED_BY = {
    "offsets.topic.replication.factor": "__consumer_offsets follows default.replication.factor",
}
"""What determines the behaviour instead, where something does."""

_NO_AUTHORIZER = "there is no authorizer, so every client could do what it forbids"
_NO_POLICY = "there are no policies, so requests that it forbids would be carried out"
_OTHER_TLS = "TLS is Python's, which does not take it, so connections that it forbids would be accepted"
PROTECTIVE_SETTINGS = {
    "allow.everyone.if.no.acl.found": _NO_AUTHORIZER,
    "alter.config.policy.class.name": _NO_POLICY,
    "authorizer.class.name": _NO_AUTHORIZER,
    "client.quota.callback.class": "there are no client quotas, so clients would not be limited",
    "config.providers": "values are taken as they stand, so references to secrets would not be resolved",
    "create.topic.policy.class.name": _NO_POLICY,
    "inter.broker.listener.name": "brokers connect to each other by the first of listeners: put it there",
    "max.connection.creation.rate": "it is not limited how fast clients connect; see max.connections",
    "max.connections.per.ip.overrides": "all addresses have the same limit; see max.connections.per.ip",
    "principal.builder.class": "principals are not made by classes of Java",
    "security.inter.broker.protocol": "brokers connect to each other by the listeners that they have",
    "security.providers": _OTHER_TLS,
    "ssl.cipher.suites": _OTHER_TLS,
    "ssl.engine.factory.class": _OTHER_TLS,
    "super.users": _NO_AUTHORIZER,
}
"""Settings that stop the start, and why."""
_HARMLESS = {
    "allow.everyone.if.no.acl.found": "true",
    "max.connection.creation.rate": "2147483647",
    "security.inter.broker.protocol": "PLAINTEXT",
}
"""Values of these settings that protect nothing; an empty value never does."""


def protection_of(name: str, text: str) -> str | None:
    """Why this value of a setting must not be ignored silently; None if nothing would be unprotected."""
    _, name = listener_and_setting(name)
    if name not in PROTECTIVE_SETTINGS or text.strip() in ("", _HARMLESS.get(name)):
        return None
    return PROTECTIVE_SETTINGS[name]


def is_without_effect(name: str, text: str, listeners: str) -> bool:
    """Whether ignoring this setting does no harm. `listeners` is the value of the setting of that name."""
    _, name = listener_and_setting(name)
    if name == "inter.broker.listener.name":
        return text.strip() in ("", listeners.strip().partition("://")[0])
    if name in PROTECTIVE_SETTINGS:
        return protection_of(name, text) is None
    return name in WITHOUT_EFFECT or name.startswith(_PREFIXES_WITHOUT_EFFECT)
