"""The options of `format("penstock")`: names, values, and the cluster client they describe."""
