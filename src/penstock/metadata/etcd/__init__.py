"""The metadata store of a cluster, kept in etcd."""
