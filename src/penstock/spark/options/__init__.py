"""Options of `format("penstock")`: names, values, and the cluster client that they describe."""
