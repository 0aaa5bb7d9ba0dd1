"""Generates docs/configuration.md from the declarations of the settings.

Regenerate the page after a declaration changed (a test fails until then):

    python -m penstock.config.reference > docs/configuration.md
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from penstock.config.broker_settings import BROKER_SETTINGS, SECTIONS
from penstock.config.group_settings import GROUP_OVERRIDE_SETTINGS
from penstock.config.kafka_differences import KAFKA_DIFFERENCES, NOT_IN_KAFKA
from penstock.config.kafka_settings import PROTECTIVE_SETTINGS
from penstock.config.setting import ConfigType, Setting
from penstock.config.topic_settings import IGNORED_TOPIC_SETTINGS, TOPIC_SETTINGS

_INTRODUCTION = """\
# Configuration

Settings have Kafka's names and, unless [listed below](#where-defaults-differ-from-kafkas), Kafka's defaults.

<!-- Generated: python -m penstock.config.reference > docs/configuration.md -->

## Where settings come from

Flags win over `--set key=value`, which wins over the file given with `--config`, which wins over defaults.
The file is TOML with each key in quotes:

```toml
"listeners" = ["PLAINTEXT://127.0.0.1:9092", "TLS://0.0.0.0:9093"]
"advertised.listeners" = ["TLS://broker.example:9093"]
"ssl.keystore.location" = "broker.pem"
"log.retention.hours" = 24
"auto.create.topics.enable" = false
```

A key that does not exist, a value that is not allowed and settings that contradict each other stop the
broker before it starts, all reported together. Settings of Kafka that this broker does not have only warn,
unless they protect something; see [below](#settings-of-kafka-that-this-broker-does-not-have).

| Flag of `serve` | Setting |
|---|---|
| `--data-dir PATH` | `log.dirs` |
| `--kafka HOST:PORT` | `listeners`, with one PLAINTEXT listener |
| `--advertised HOST[:PORT]` | `advertised.listeners`, for the one listener there is |
| `--http HOST:PORT` | `http.listener` |
| `--node-id NUMBER` | `node.id` |
| `--rack NAME` | `broker.rack` |
| `--metadata STORE` | `metadata.store` |
| `--insecure` | none: allows listeners without TLS beyond this machine |

Settings marked *run time* can be changed while the broker runs, with any Kafka tool that alters the
configuration of brokers; the others are read when it starts.

## Where defaults differ from Kafka's
"""

_TOPIC_INTRODUCTION = """\
## Topic settings

Set when a topic is created or later with any Kafka tool, and in force at once. A topic without a value of its
own follows the broker setting named beside it; of several, the first that is set counts.

A batch has to fit a segment as well, so the largest batch is the smaller of `max.message.bytes` and
`segment.bytes`.
"""

_GROUP_INTRODUCTION = """\
## Group settings

What one group of the new protocol can be given for itself, with any Kafka tool that alters the configuration
of groups, whether or not it has members. Members learn of it when they report next. A group without a value
of its own follows the broker setting named beside it. The limits are the broker settings
`group.consumer.min.session.timeout.ms` and its like; a session must be longer than a heartbeat interval.
"""

_KAFKA_INTRODUCTION = """\
## Settings of Kafka that this broker does not have

A configuration that was written for Kafka may be given as it is: settings that this broker does not have are
left out, and the log says so (`config.warning`). So it is with `message.max.bytes` above
`socket.request.max.bytes` or `log.segment.bytes`, which Kafka takes too: larger batches are rejected.

These stop the start, because without them something would be unprotected, unless they are empty or have a
default that protects nothing:
"""

_STOPS_THE_START = """\

So do values that Kafka takes and this broker does not:

| Setting | Kafka takes | Why not here |
|---|---|---|
| `listeners` | an address beyond this machine without TLS | Open to every client; `--insecure` allows it. |
| `log.dirs` | several directories | There is one. |
| `queued.max.request.bytes` | -1, no limit | Clients would decide how much memory the broker needs. |
| `fetch.max.bytes` | more than 57671680 | The same. |
| `num.partitions` | more than 10000 | The same. |
| `ssl.keystore.type`, `ssl.truststore.type` | JKS, PKCS12 | Only PEM files can be read. |
| `replica.selector.class`, `group.consumer.assignors` | classes of Java | Only what is built in. |
| any other name | ignores it | A misspelt setting would have no effect, without any sign. |

While the broker runs, settings that it does not know are kept and listed, and have no effect
(AlterConfigs, IncrementalAlterConfigs).
"""

_TLS_NOTE = """\
Each of these can be set for one listener, with the listener's name in lower case:
`listener.name.tls.ssl.client.auth`.
"""


def render() -> str:
    return "\n".join(chain(_kafka_differences(), _topics(), _groups(), _brokers(), _kafkas()))


def _kafka_differences() -> Iterator[str]:
    yield _INTRODUCTION
    yield "| Setting | Kafka | Penstock | Why |"
    yield "|---|---|---|---|"
    declared = {**BROKER_SETTINGS, **TOPIC_SETTINGS}
    for name, difference in KAFKA_DIFFERENCES.items():
        ours = difference.ours or _default(declared[name])
        yield f"| `{name}` | {difference.kafka} | {ours} | {difference.reason} |"
    yield ""


def _topics() -> Iterator[str]:
    yield _TOPIC_INTRODUCTION
    yield from _table(TOPIC_SETTINGS.values())
    ignored = ", ".join(f"`{name}`" for name in sorted(IGNORED_TOPIC_SETTINGS))
    yield f"Accepted and ignored, because older tools send them: {ignored}.\n"


def _groups() -> Iterator[str]:
    yield _GROUP_INTRODUCTION
    yield from _table(GROUP_OVERRIDE_SETTINGS.values())


def _brokers() -> Iterator[str]:
    yield "## Broker settings\n"
    for title, settings in SECTIONS:
        yield f"### {title}\n"
        if title == "TLS":
            yield _TLS_NOTE
        yield from _table(settings)


def _kafkas() -> Iterator[str]:
    yield _KAFKA_INTRODUCTION
    yield "| Setting | Why |"
    yield "|---|---|"
    for name, reason in PROTECTIVE_SETTINGS.items():
        yield f"| `{name}` | {reason} |"
    yield _STOPS_THE_START


def _table(settings: Iterable[Setting]) -> Iterator[str]:
    yield "| Setting | Type | Default | Allowed | Meaning |"
    yield "|---|---|---|---|---|"
    for setting in settings:
        kind = setting.type.name.lower() + (", *run time*" if setting.dynamic else "")
        cells = (f"`{setting.name}`", kind, _default(setting), _allowed(setting), _meaning(setting))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _default(setting: Setting) -> str:
    text = setting.default_text
    if text is None:
        return "not set"
    return f"`{text}`".replace(",", ", ") if text else "empty"


def _allowed(setting: Setting) -> str:
    plain = setting.rule is None and not setting.allowed and setting.minimum is None
    if plain and setting.type in (ConfigType.STRING, ConfigType.PASSWORD):
        return "any text"
    return setting.allowed_text


def _meaning(setting: Setting) -> str:
    parts = [setting.doc]
    if setting.synonyms:
        parts.append("Follows " + ", ".join(f"`{name}`" for name in setting.synonyms) + ".")
    if setting.name in NOT_IN_KAFKA:
        parts.append("Not a setting of Kafka.")
    if setting.effect:
        parts.append(f"**Effect {setting.effect}.**")
    return " ".join(parts)


if __name__ == "__main__":
    print(render(), end="")
