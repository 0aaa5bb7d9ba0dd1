"""Kafka's description of a broker's settings and ours, where they differ on purpose (gap G8).

Each setting and each value is named: another difference in the same answer is a defect.
"""

from tools.differential.compare import ABSENT

_ONLY_KAFKA_HAS = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
alter.log.dirs.replication.quota.window.size.seconds authorizer.class.name
background.threads broker.heartbeat.interval.ms
broker.session.timeout.ms client.quota.callback.class config.providers
connection.failed.authentication.delay.ms connections.max.reauth.ms controlled.shutdown.enable
controller.listener.names controller.quorum.append.linger.ms controller.quorum.auto.join.enable
controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
controller.quorum.election.timeout.ms controller.quorum.fetch.timeout.ms
controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
controller.quota.window.num controller.quota.window.size.seconds controller.socket.timeout.ms
create.topic.policy.class.name delegation.token.expiry.check.interval.ms
delegation.token.expiry.time.ms delegation.token.max.lifetime.ms delegation.token.secret.key
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
group.streams.session.timeout.ms initial.broker.registration.timeout.ms inter.broker.listener.name
kafka.metrics.polling.interval.secs kafka.metrics.reporters leader.imbalance.check.interval.seconds
log.dir.failure.timeout.ms log.flush.offset.checkpoint.interval.ms
log.flush.start.offset.checkpoint.interval.ms log.local.retention.bytes log.local.retention.ms
max.connection.creation.rate max.connections.per.ip.overrides max.request.partition.size.limit
metadata.log.dir metadata.log.max.record.bytes.between.snapshots
metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.ms
metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms num.io.threads
num.network.threads num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads
num.replica.fetchers offsets.commit.timeout.ms offsets.load.buffer.size
offsets.topic.compression.codec offsets.topic.replication.factor principal.builder.class
process.roles producer.purgatory.purge.interval.requests queued.max.requests quota.window.num
quota.window.size.seconds replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes
replica.fetch.response.max.bytes replica.fetch.wait.max.ms
replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms replica.selector.class
replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
replication.quota.window.size.seconds request.timeout.ms sasl.client.callback.handler.class
sasl.enabled.mechanisms sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
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
security.inter.broker.protocol security.providers share.coordinator.append.linger.ms
share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
share.coordinator.state.topic.num.partitions share.coordinator.state.topic.replication.factor
share.coordinator.state.topic.segment.bytes share.coordinator.threads
share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms socket.listen.backlog.size
socket.receive.buffer.bytes socket.send.buffer.bytes ssl.allow.dn.changes ssl.allow.san.changes
ssl.cipher.suites ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.password
ssl.principal.mapping.rules ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.password telemetry.max.bytes
transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
transaction.partition.verification.enable transaction.remove.expired.transaction.cleanup.interval.ms
transaction.state.log.load.buffer.size transaction.state.log.min.isr
transaction.state.log.num.partitions transaction.state.log.replication.factor
transaction.state.log.segment.bytes transaction.two.phase.commit.enable
transactional.id.expiration.ms
"""
ONLY_KAFKA_HAS = frozenset(_ONLY_KAFKA_HAS.split())

_ONLY_PENSTOCK_HAS = """
auto.balance follower.replication.throttled.rate group.consumer.rebalance.heartbeat.interval.ms
http.listener inter.broker.protocol.version leader.imbalance.per.broker.percentage
leader.replication.throttled.rate
log.flush.policy log.retention.topic.bytes metadata.store
"""
ONLY_PENSTOCK_HAS = frozenset(_ONLY_PENSTOCK_HAS.split())

READ_ONLY_HERE = (
    "listener.security.protocol.map",
    "listeners",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.threads",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.location",
    "ssl.truststore.type",
)
"""Kafka can change them while it runs."""

READ_ONLY_THERE = (
    "auto.leader.rebalance.enable",
    "group.consumer.assignors",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.size",
    "group.consumer.migration.policy",
    "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "log.cleaner.enable",
    "offset.metadata.max.bytes",
    "offsets.retention.check.interval.ms",
    "offsets.retention.minutes",
    "replica.lag.time.max.ms",
)
"""Kafka has to be restarted for them."""

VALUES: tuple[tuple[str, str, str], ...] = (
    ("advertised.listeners.value", "<place>", "None"),
    ("advertised.listeners.config_source", "4", "5"),
    (
        "advertised.listeners.synonyms.0",
        "{'name': 'advertised.listeners', 'value': '<place>', 'source': 4}",
        ABSENT,
    ),
    ("broker.id.config_source", "4", "5"),
    ("broker.id.synonyms.0.source", "4", "5"),
    ("broker.id.synonyms.1.name", "broker.id", "node.id"),
    ("broker.id.synonyms.1.value", "-1", "1"),
    ("group.consumer.heartbeat.interval.ms.value", "5000", "1000"),
    ("group.consumer.heartbeat.interval.ms.synonyms.0.value", "5000", "1000"),
    ("group.consumer.min.heartbeat.interval.ms.value", "5000", "1000"),
    ("group.consumer.min.heartbeat.interval.ms.synonyms.0.value", "5000", "1000"),
    ("group.consumer.max.size.value", "2147483647", "10000"),
    ("group.consumer.max.size.synonyms.0.value", "2147483647", "10000"),
    ("group.max.size.value", "2147483647", "10000"),
    ("group.max.size.synonyms.0.value", "2147483647", "10000"),
    (
        "listener.security.protocol.map.value",
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,TLS:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    ),
    ("listener.security.protocol.map.config_source", "4", "5"),
    (
        "listener.security.protocol.map.synonyms.0.value",
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,TLS:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    ),
    ("listener.security.protocol.map.synonyms.0.source", "4", "5"),
    (
        "listener.security.protocol.map.synonyms.1",
        "{'name': 'listener.security.protocol.map', *'source': 5}",
        ABSENT,
    ),
    ("listener.security.protocol.map.config_type", "2", "7"),
    ("log.dir.config_source", "5", "4"),
    ("log.dir.synonyms.0.name", "log.dir", "log.dirs"),
    ("log.dir.synonyms.0.source", "5", "4"),
    ("log.dir.synonyms.1", ABSENT, "{'name': 'log.dir', 'value': '<place>', 'source': 5}"),
    ("log.dir.synonyms.2", ABSENT, "{'name': 'log.dirs', 'value': '<place>', 'source': 5}"),
    ("log.dir.config_type", "7", "2"),
    ("log.dirs.synonyms.1", ABSENT, "{'name': 'log.dirs', 'value': '<place>', 'source': 5}"),
    ("log.dirs.synonyms.2", ABSENT, "{'name': 'log.dir', 'value': '<place>', 'source': 5}"),
    ("max.connections.value", "2147483647", "10000"),
    ("max.connections.synonyms.0.value", "2147483647", "10000"),
    ("node.id.config_source", "4", "5"),
    ("node.id.synonyms.0.source", "4", "5"),
    ("node.id.synonyms.1", ABSENT, "{'name': 'broker.id', 'value': '1', 'source': 5}"),
    ("offsets.topic.segment.bytes.value", "104857600", "8388608"),
    ("offsets.topic.segment.bytes.synonyms.0.value", "104857600", "8388608"),
    ("queued.max.request.bytes.value", "-1", "268435456"),
    ("queued.max.request.bytes.synonyms.0.value", "-1", "268435456"),
    ("ssl.keystore.type.value", "JKS", "PEM"),
    ("ssl.keystore.type.synonyms.0.value", "JKS", "PEM"),
    ("ssl.truststore.type.value", "JKS", "PEM"),
    ("ssl.truststore.type.synonyms.0.value", "JKS", "PEM"),
)
"""Field, Kafka's value, ours."""
