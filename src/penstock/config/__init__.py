"""Settings: declared once, typed, bounded, described and changed by pure functions.

    setting            what a declared setting is; conversion from text to value and back
    topic_settings     the declarations of topic settings
    broker_settings    the declarations of broker settings
    group_settings     the declarations of group settings, and the settings that one group can have
    layers             which of several given values is effective, and where it came from
    topic              TopicConfig: the effective settings of one topic's log
    broker             BrokerConfig: small typed parts, one for each part of the broker
    listeners          addresses that the broker binds, and addresses that it advertises to clients
    checks             what settings must fulfil together
    sources            flags override --set, which overrides the file, which overrides defaults
    describe           results of DescribeConfigs
    alter              results of AlterConfigs and IncrementalAlterConfigs
    kafka_differences  where our defaults differ from Kafka's, and why
    reference          docs/configuration.md, from all of the above

Settings have Kafka's names; code uses attributes with the unit last.
"""
