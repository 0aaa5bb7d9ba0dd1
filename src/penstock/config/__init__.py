"""Settings: declared once, typed, bounded, described and changed by pure functions.

    setting          what a declared setting is; text to value and back
    topic_settings   the declarations of topic settings
    broker_settings  the declarations of broker settings
    group_settings   those of groups, and what one group can be given for itself
    layers           which of several given values counts, and where it came from
    topic            TopicConfig: what one topic's log obeys
    broker           BrokerConfig: small typed parts, one for each part of the broker
    listeners        where clients connect, and what they are told to connect to
    checks           what settings must hold between them
    sources          flags over --set over the file over defaults
    describe         answers for DescribeConfigs
    alter            answers for AlterConfigs and IncrementalAlterConfigs
    departures       where our defaults are not Kafka's, and why
    reference        docs/configuration.md, from all of the above

Kafka's names stay the names of settings; code sees attributes with the unit last.
"""
